"""The llama.cpp backend: every GGUF. See `backend`."""
