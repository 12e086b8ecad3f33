"""Turns text into tokens, without the library that runs the model. Chat templates are in `text`."""
