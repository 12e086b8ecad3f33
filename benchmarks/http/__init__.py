"""What the server is worth under load, kills, leavers and signals. See `benchmarks.http.__main__`."""
