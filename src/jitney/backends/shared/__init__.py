"""What a backend is built of: slots, spans, blocks, shapes of passes. Nothing of one backend."""
