"""Turns tokens into text, and messages into prompts. No engine, no model."""
