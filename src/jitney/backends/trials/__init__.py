"""What is found out by trying: whether a backend works here, how fast, in which shape."""
