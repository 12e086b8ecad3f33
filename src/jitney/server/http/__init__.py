"""The edge of HTTP: connections, headers, bodies, time limits.

All that touches the insides of uvicorn and h11 is here. Nothing here knows OpenAI's fields.
"""
