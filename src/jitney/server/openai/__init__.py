"""OpenAI's interface: bodies in, replies and errors out. Nothing here owns a connection."""
