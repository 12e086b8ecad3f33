"""`python -m benchmarks [SECTION ...]`: see `benchmarks.engine`, and `benchmarks.gpu` for `gpu`."""

import sys

if sys.argv[1:2] == ["gpu"]:
    # Where there is a GPU, what the others need may not be installed.
    from benchmarks import gpu

    gpu.main(sys.argv[2:])
else:
    from benchmarks import engine

    engine.main(sys.argv[1:])
