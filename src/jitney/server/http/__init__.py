"""The edge of HTTP: connections, headers, bodies, time limits, and what surrounds every request.

All that touches the insides of uvicorn and h11 is here. Nothing here knows OpenAI's fields.
"""
