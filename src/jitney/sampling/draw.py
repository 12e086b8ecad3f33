"""Random numbers that depend only on (seed, position).

Pure functions over Python integers. There is no generator with a state. So a sequence draws the
same numbers in any batch, after a preemption, and after a crash.
"""

_MASK = 2**64 - 1
# The odd constants of SplitMix64: the golden ratio's increment and the two of its finaliser.
_INCREMENT = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, for the token at `position`."""
    return (_mix(_mix(seed) + position) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    """SplitMix64: one step and its finaliser, a permutation of the 64-bit numbers."""
    value = (value + _INCREMENT) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)
