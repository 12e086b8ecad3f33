"""What a tick costs, learnt as it runs: seconds = a + b * decode tokens + c * prefill tokens.

Least squares of relative errors over recent ticks with exponential forgetting; three numbers,
solved afresh when asked. Used by the `bounded-stall` mix and for the retry time of a full queue.
"""

FORGET = 0.98
RIDGE = 1e-6
SPAN_UNKNOWN = 64
"""Prefill tokens beside decodes before anything is known. Afterwards at most twice as many as
recent ticks had: what a first long prompt costs is found out in small steps."""


class CostModel:
    """Fits the cost of a tick from what was observed."""

    def __init__(self) -> None:
        self._normal = [
            [RIDGE if row == column else 0.0 for column in range(3)] for row in range(3)
        ]
        self._moment = [0.0, 0.0, 0.0]
        self._span_recent = 0.0
        self.observed_count = 0
        self.tokens_per_s = 0.0

    def observe(self, decode_count: int, prefill_count: int, seconds: float) -> None:
        """A tick with so many tokens of each kind took so long."""
        if seconds <= 0.0:
            return
        # Scaled so that the three columns are of one magnitude, else the solution is all noise;
        # divided by the time, else one long prefill outweighs a hundred decodes.
        features = (1.0 / seconds, decode_count / 16 / seconds, prefill_count / 256 / seconds)
        for row in range(3):
            for column in range(3):
                self._normal[row][column] *= FORGET
                self._normal[row][column] += features[row] * features[column]
            self._normal[row][row] += RIDGE * (1 - FORGET)
            self._moment[row] = self._moment[row] * FORGET + features[row]
        self._span_recent = max(prefill_count, FORGET * self._span_recent)
        self.observed_count += 1
        rate = (decode_count + prefill_count) / seconds
        weight = 0.1 if self.tokens_per_s else 1.0
        self.tokens_per_s += weight * (rate - self.tokens_per_s)

    def prefill_within(self, seconds: float, decode_count: int) -> int:
        """Prefill tokens that fit beside the decodes in so much time.

        Where the decodes alone take more than half of it, what fits in twice their time: new
        prompts get half of every tick, however slow the machine.
        """
        known = max(SPAN_UNKNOWN, int(2 * self._span_recent))
        solved = _solve(self._normal, self._moment)
        if solved is None or solved[2] <= 0.0:
            return known
        decodes_s = max(0.0, solved[0] + solved[1] * decode_count / 16)
        left_s = max(seconds, 2 * decodes_s) - decodes_s
        return min(known, int(left_s / solved[2] * 256))


def _solve(matrix: list[list[float]], vector: list[float]) -> list[float] | None:
    """Three equations by elimination with pivoting; None when they do not determine an answer."""
    rows = [[*matrix[index], vector[index]] for index in range(3)]
    for column in range(3):
        pivot = max(range(column, 3), key=lambda row: abs(rows[row][column]))
        if abs(rows[pivot][column]) < 1e-9:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(3):
            if row != column:
                factor = rows[row][column] / rows[column][column]
                rows[row] = [
                    value - factor * above
                    for value, above in zip(rows[row], rows[column], strict=True)
                ]
    return [rows[index][3] / rows[index][index] for index in range(3)]
