"""Every upper bound of files and batches that is not a setting, with the reason for its value.

All are checked on entry, and shown in the metrics as `jitney:jobs_limit` (invariant 9). Those of a
line's body are the ones of any body: `jitney.server.limits`.

Tests: tests/e2e/batches/test_batch_limits.py.
"""

FILE_BYTES_MAX = 536_870_912
"""One file: OpenAI's own limit for files. Its batches take 200 MB."""

LINES_MAX = 1_000_000
"""Lines of one batch."""

LINE_ENVELOPE_BYTES = 4096
"""What a line may have beside its body: `custom_id`, `method`, `url`."""

FILES_MAX = 1000
"""Files of one key, those of results included."""

KEY_BYTES_MAX = 4_294_967_296
"""All files of one key."""

BATCHES_LIVE_MAX = 64
"""Batches of one key that have not ended."""

BATCHES_KEPT_MAX = 10_000
"""Batches of one key that can be asked for; the oldest that has ended is forgotten first."""

UPLOADS_MAX = 16
UPLOADS_KEY_MAX = 4
"""Files on their way in at once, over all keys and of one. Where there is one key or none, the
first holds."""

UPLOAD_BYTES_PER_S_MIN = 65_536
"""A file may arrive as slowly as this, beyond the time that any body has (BODY_S_MAX)."""

FORM_BYTES = 16_384
"""What an upload may have beside its file: boundaries, headers and fields."""

FORM_FIELDS_MAX = 16
FORM_FIELD_BYTES_MAX = 1024
PART_HEADER_BYTES_MAX = 4096
BOUNDARY_CHARACTERS_MAX = 70
"""Of the text between the parts of an upload; RFC 2046 has the same bound."""

FILENAME_CHARACTERS_MAX = 255
CUSTOM_ID_CHARACTERS_MAX = 512
MESSAGES_LISTED_MAX = 1000
"""Batches of messages in one answer, as Anthropic has it."""

IDEMPOTENCY_KEY_CHARACTERS_MAX = 255

WINDOW_S = 86_400
"""The time that a batch has: `24h`, the only one that OpenAI takes."""

FILES_LISTED_MAX = 10_000
BATCHES_LISTED_MAX = 100
"""Rows of one answer, as OpenAI has them."""

WRITE_BYTES = 1_048_576
"""Bytes of a file that are written in one go."""

READ_BYTES = 262_144
"""Bytes of a file that are read in one go."""

CHECK_LINES = 256
CHECK_BYTES = 4_194_304
"""Lines of an input that are checked in one go, about ten milliseconds; others run in between."""

OUTPUT_LINES = 256
OUTPUT_BYTES = 4_194_304
"""Results that are read in one go for the output."""

WRITERS_MAX = 4
"""Outputs that are written at once: so many parts of them are in memory."""

SWEEP_LINES = 1024
"""Lines of an ended batch that are removed in one go."""

PENDING_LINES = 256
"""Lines of one batch that wait in memory for their turn, without their text."""

UNKEPT_MAX = 1024
"""Answers that wait to be written to the store. Beyond it no new line is begun."""

LATER_S_MIN = 0.05
LATER_S_MAX = 5.0
"""How long a line waits before it is tried again where there was no room for it, and where the
backend ended while it read it."""

CRASHED_KEY_MAX = 2
"""Lines of one key that wait after a backend ended with them. Beyond it no line of that key is
begun: each may end the backend."""

TROUBLE_S = 2.0
"""How long the work pauses when the disk is full, or fails, before it tries again."""

AGE_S = 10.0
"""How often the time that has passed for batches is noted: a kill forgets no more than that."""

ALLOWANCE_S = 10.0
"""How often what keys get back is noted, and given out: a kill forgets no more than that."""

ALLOWANCE_DAYS_MAX = 2
"""The most that a key has to wait for after a start, in days."""

STORE_S = 5.0
"""How often a store that cannot be opened is asked for."""

TURN_S_MIN = 0.1
TURN_S_MAX = 1.0
"""How often all batches are looked at: while something changes, and while nothing does."""
