"""The engine: one thread that plans, runs and applies a batch per tick, and answers callers."""
