"""Trials in child processes: whether a backend works here, its speed, and its shape of passes."""
