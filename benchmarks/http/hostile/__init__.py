"""A calm caller beside every attack there is: what one caller can do to another.

See `benchmarks.http.hostile.command` for how it is run, and `attack` for what an attack is.
"""
