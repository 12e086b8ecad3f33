"""`jitney bench`: load and measurements.

Everything that measures speed for a user belongs here; what predicts it is in `jitney_lab.plan`.
What the engine itself counts does not (`engine/stats.py`), nor do the project's own experiments and
comparisons with other systems (`benchmarks/`).
"""
