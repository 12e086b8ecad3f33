"""Model files: reads, fetches, converts, lists and removes them. Nothing here runs a model."""
