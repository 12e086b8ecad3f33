"""`jitney plan`: which settings and how many replicas a load needs, found by simulation.

calibrate   measures what ticks cost on this machine, and fits a `Cost`
simulate    the production scheduler on virtual time, with ticks that take what the cost says
recommend   searches settings and replicas for a load and its limits
day         a large fleet over a day, as a sample with its error
"""
