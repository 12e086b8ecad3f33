"""Every upper bound of Responses that is not a setting, with the reason for its value.

All are checked on entry (invariant 9). Those of any body are in `jitney.server.limits`.

Tests: tests/e2e/openai_responses/test_stored.py.
"""

ITEMS_MAX = 4096
"""Items of one input, as a chat has messages; and of a conversation with all before it."""

INCLUDE_MAX = 16
"""Names in `include`: there are not half as many."""

SUMMARIES_MAX = 256
"""Parts of an earlier thought."""

LINKS_MAX = 1024
"""Responses behind one another by `previous_response_id`."""

KEPT_MAX = 10_000
"""Responses of one key that are kept; the oldest that has ended is forgotten first."""

KEPT_BYTES_MAX = 1_073_741_824
"""Bytes of all responses of one key: their inputs and their answers. Forgotten as above."""

LIVE_MAX = 1024
"""Background responses of one key that have not ended."""

EXPIRY_S = 30 * 86_400
"""How long a response is kept, from when it was made: as OpenAI keeps it."""

SWEEP_S = 60.0
SWEEP_ROWS = 1024
"""How often expired responses are looked for, and how many rows go in one transaction, with those
of one response at most beyond them."""

PIECE_DELTAS = 256
"""Deltas of an answer that are stored, and read again, as one piece."""

READ_PIECES = 16
READ_CHARACTERS = 32_768
"""Pieces of one response that become events in one go, and the text that they have, unless one has
more: a client that takes nothing keeps the events of one go."""

WAITING_READ = 64
"""Responses that have not ended and are read from the store in one go, at a start."""

LINK_BYTES = 262_144
"""A conversation is read from the store in parts of so many bytes."""

FEEDS_KEY_MAX = 512
"""Streams of stored responses that one key reads at once."""

FEED_FREE_BYTES = 65_536
FEEDS_KEY_BYTES = 33_554_432
FEEDS_BYTES = 134_217_728
"""Bytes that a stream of a stored response may hold at any time; and what those of one key, and all
of them, hold together beyond that. A stream that would hold more waits until others have been read;
one may always go on, however much it holds."""

FEED_CHUNK_BYTES = 131_072
"""What is written to a client in one go."""

FEED_TURN_S = 1.0
"""How often a stream that waits looks whether the server stops."""

LATER_S_MIN = 0.05
LATER_S_MAX = 5.0
"""How long a background response waits where there was no room for it."""

ITEMS_LISTED_MAX = 100
"""Items of one answer, as OpenAI has them."""
