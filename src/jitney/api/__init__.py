"""What Python callers use: `LLM`, callbacks, outputs. Nothing here knows HTTP or a terminal."""
