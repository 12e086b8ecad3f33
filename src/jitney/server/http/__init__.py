"""The edge of HTTP: connections, headers, time limits. Nothing here knows OpenAI or the engine."""
