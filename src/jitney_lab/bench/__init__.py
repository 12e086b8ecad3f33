"""`jitney bench`: load, measurements and comparisons.

Everything that measures speed for a user belongs here; what predicts it is in `jitney_lab.plan`.
What the engine itself counts does not (`engine/stats.py`), nor do the project's own experiments
(`benchmarks/`).
"""
