"""A backend in a process of its own: both ends of the pipe. Nothing of one backend."""
