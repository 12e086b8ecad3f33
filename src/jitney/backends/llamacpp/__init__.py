"""The llama.cpp backend: every GGUF, sequences of one unified cache. See `backend`."""
