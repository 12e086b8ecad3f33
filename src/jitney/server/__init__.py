"""The server: OpenAI's HTTP interface over one engine. Runs on an event loop of its own."""
