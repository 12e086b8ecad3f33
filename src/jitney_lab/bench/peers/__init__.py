"""Other systems that `jitney bench compare` measures beside jitney, if they are installed.

One module for each way of running one. Nothing here is used outside of `compare`.
"""
