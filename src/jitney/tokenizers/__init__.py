"""Text to tokens, without the library that runs the model. Chat templates are in `text`."""
