"""`python -m benchmarks [SECTION ...]`: see `benchmarks.engine`."""

import sys

from benchmarks.engine import main

main(sys.argv[1:])
