"""The torch backend: models in plain PyTorch, on NVIDIA GPUs and, slower, on the CPU."""
