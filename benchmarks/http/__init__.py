"""What the server is worth under load, kills and signals; see `benchmarks.http.__main__`."""
