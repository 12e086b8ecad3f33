"""`jitney bench` and `jitney plan`: load, measurements, comparisons and predictions.

Everything that measures or predicts speed for a user belongs here. What the engine itself counts
does not (`engine/stats.py`), nor do the project's own experiments (`benchmarks/`).
"""
