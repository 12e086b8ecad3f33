"""Runs a backend in another process: both ends of the pipe. No code for one backend."""
