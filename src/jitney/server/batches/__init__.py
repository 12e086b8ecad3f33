"""Work that may wait: OpenAI's files and batches, and `jitney batch run`.

`store.py` says how every line ends exactly once in the output.
"""
