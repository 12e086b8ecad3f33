"""Model files: what a GGUF says of itself, the embedded model, the cache of converted ones."""
