"""Triton kernels of the torch backend, for CUDA; tests run them in Triton's interpreter.

Letters of shapes are those of `jitney.backends.torch.model`.
"""
