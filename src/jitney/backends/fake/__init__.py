"""The fake backend: no model, but an exact memory and answers that depend on all of it."""
