"""jitney beside other systems that are installed: `python -m benchmarks.compare`.

One module for each way of running another system. `comparison` measures them in turn.
"""
