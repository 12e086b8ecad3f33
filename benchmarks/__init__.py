"""Benchmarks: ratios measured in one run. Not tests, and not part of the package."""
