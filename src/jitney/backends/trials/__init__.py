"""Trials of backends in child processes, which are remembered: `trial` for all of them."""
