"""Every upper bound of the HTTP side that is not a setting, with the reason for its value.

Those of the engine are in `jitney.core.limits`; both are checked on entry (invariant 9).

Tests: tests/unit/server/test_deploy.py and tests/e2e/server/test_rows_bodies.py.
"""

DEPTH_MAX = 64
"""Levels of JSON. Schemas of tools are the deepest thing that anyone sends."""

OBJECT_KEYS_MAX = 4096
"""Keys of one JSON object; a logit_bias has at most 1024."""

CONTAINERS_MAX = 32_768
"""Lists and objects of one body: each takes far more memory than the bytes it is written in."""

VALUES_MAX = 131_072
VALUE_BYTES_USUAL = 16
"""Strings and numbers of one body: so many, or one for each 16 bytes that a body may have, if that
is more; but never more strings than so many. Each takes 150 ns to parse, and nothing else is served
meanwhile."""

INLINE_BYTES_MAX = 65_536
"""A body larger than this is parsed off the event loop, one at a time, with pauses in between."""

INLINE_VALUES_MAX = 20_000
"""A reply of more tokens and logprobs than this is written out off the event loop."""

PROMPTS_MAX = 128
"""Prompts of one call to /v1/completions; more than this is a batch job."""

TOKENS_LISTED_MAX = 2_000_000
"""Token ids of one prompt, or of one text to be decoded: beyond every context there is."""

MESSAGES_MAX = 4096
PARTS_MAX = 4096
"""Parts of one message's content."""

TOOLS_MAX = 128
NAME_CHARACTERS_MAX = 256
METHOD_CHARACTERS_MAX = 16
REQUEST_ID_CHARACTERS_MAX = 64

METADATA_ENTRIES_MAX = 16
METADATA_KEY_CHARACTERS_MAX = 64
METADATA_VALUE_CHARACTERS_MAX = 512
"""Of `metadata`, which nobody reads: OpenAI's own limits."""

LOGPROB_VALUES_MAX = 100_000
"""Logprobs that one call may ask for: positions times alternatives, over all its completions.
Each takes about a hundred bytes until it is sent."""

DEADLINE_MS_MAX = 86_400_000

HEADER_BYTES_MAX = 16_384
"""The request line and all headers together."""

HEADER_COMMAS_MAX = 256
"""In all headers together: lists are split at each comma, several times."""

HEADER_BYTES_PER_STEP = 128
"""Bytes of headers that count as one more step of a round."""

HEADERS_MAX = 128
ADDRESS_BYTES_MAX = 8192

PIECE_BYTES_MAX = 32_768
"""Bytes of a body that are read in one piece, and so kept in between."""

CHUNKS_PER_PIECE = 256
"""Chunks of a body that are read in one piece, which takes less than half a millisecond."""

CHUNKS_MAX = 32_768
CHUNK_BYTES_USUAL = 1024
"""Chunks of one body, and one more for each 1024 bytes in them. Clients send larger chunks; chunks
of single bytes are an attack."""

CHUNK_LINE_BYTES_MAX = 256
"""The line before a chunk, with an extension that nobody reads."""

TRAILER_BYTES_MAX = 4096
"""Headers after a body, which nobody reads."""

STEPS_PER_ROUND = 256
"""Steps of reading in one round of the event loop, over all connections. A step takes some 15 us,
so that a stream waits for it no longer than a token takes."""

STEPS_PER_SHARE = 16
"""Steps for one connection until others have their turn: enough for an ordinary request."""

HEAD_BYTES_USUAL = 4096
"""A request that is longer waits for its turn with those that are long."""

READS_BYTES_MAX = 67_108_864
"""Bytes of all connections that wait to be read; each may have up to 256 KB. Beyond this, all but
short requests are refused, and their clients may try again later."""

STEPS_PER_REQUEST = 10
"""Steps of one request, which is answered too."""

STEPS_PER_END = 4
"""Steps to end a connection whose time is over."""

CHUNKS_PER_STEP = 16

HEADER_S_MAX = 10.0
"""From the first moment of a connection to the end of its headers."""

BODY_S_MAX = 60.0
"""For a body to arrive whole."""

BODIES_READ_MAX = 4096
"""Bodies on their way in at once; one more ends the oldest of them. So slow clients, however many,
take no place from fast ones."""

BODY_BYTES_SPARED = 16_384
"""Bytes at the beginning of each body that do not count as held, so that large bodies cause no
refusal of an ordinary request. Bounded by the number of bodies."""

BODY_UNREAD_BYTES_MAX = 1_048_576
"""Of one body, between its connection and its reader. Reading pauses at 64 KB, so it is usually
less than half of this."""

KEEP_ALIVE_S = 30
"""How long a connection may be idle between two requests."""

UNWRITTEN_BYTES_MAX = 16_384
"""What we hold for a client that does not read, before its stream waits for it."""

UNSENT_BYTES_MAX = 131_072
"""What the system holds for a client that does not read. By default it holds megabytes for each,
and we notice a client that has stopped only when they are full."""

ROUND_REST_PART = 4.0
ROUND_REST_S_MIN = 0.001
ROUND_REST_S_MAX = 0.04
"""How long the news of streams rest after a round in which they were written: so many times as long
as the round took, so that the rest of the loop's time is for requests. That is how much later a
token may be seen; with 256 streams it takes longer to write to each than this gathers. A shorter
rest than the minimum is none."""

STALL_S_MAX = 60.0
"""Without the end of a forward pass, while requests wait, until /health reports it. Where a
prompt's token takes 10 ms, a pass of 2048 takes 20 s, and some end a server by what /health says.
"""

SEND_S_MAX = 30.0
"""That a client may read nothing, with full buffers, before it is cut off."""

PING_S = 15.0
"""Seconds between comments on a stream that waits, so that proxies keep it open."""

HEADERS_WAIT_S = 1.0
"""A stream's status line waits so long for the first token, so that an early failure can still
be a status and the time in the queue can still be a header."""

ACCEPT_S_MAX = 60.0
"""For the engine to look at a request: it does so after each forward pass."""

DEADLINE_GRACE_S = 0.5
"""The engine ends a request after its deadline, between two batches. If it has not done so after
this time, the caller gets its error anyway."""

LINGER_S_MAX = 2.0
"""How long a client may finish sending a body that was answered early. A client that is cut while
it sends may lose the response."""

REST_BYTES_MAX = 65_536
"""A body up to this size that was answered early is skipped, and its connection kept. Most clients
send the body right after the headers, and an early refusal such as a 429 comes in between."""

CALLS_UNSENT_MAX = 64
"""Calls that may be on their way to the engine beside those that it holds."""

BODY_BYTES_PER_TOKEN = 32
BODY_BYTES_MIN = 2_097_152
"""The largest body by default: 32 bytes for each token of the model's length, and at least 2 MB. A
token is 4 bytes of text, up to 20 with escapes, and 8 as a number; and one call may have a hundred
short prompts."""

WORK_SMALL_BYTES = 16_384
"""A body up to this size is small work: large work leaves a thread for it."""

WORK_TINY_BYTES = 2048
WORKS_TOGETHER_MAX = 64
"""Up to this size, and so many at once, work is done together: less than a slice of text in all."""

APART_S = 5.0
"""How long each work is done alone after works that could not be done together: a chat that takes
seconds may have been among them."""

DECODE_SLICE = 4096
"""Tokens that are decoded between two checks whether the caller has left."""

BODIES_MAX = 16
BODIES_BYTES_MIN = 160_000_000
"""Bytes of bodies that are held at once: 16 bodies of the largest size, and at least 160 MB. Most
bodies are far smaller."""

CONNECTIONS_MAX = 8192
"""Connections at once, idle ones included; the next one is refused and closed. Fewer where the
limit on open files is lower: see `jitney.server.http.connections`."""

ACCEPTS_PER_ROUND = 64
"""Connections accepted in one round of the event loop; streams wait meanwhile."""

FILES_KEPT = 128
"""Open files that are not connections: the model, the backend's pipes, the log, and connections
that are being refused."""

WORKER_THREADS = 4
"""Threads that tokenise and compile; the model's tokenizer takes turns anyway."""

LOG_BYTES_MAX = 1_048_576
"""Lines of the log that wait to be written: about 8,000 lines of requests, as many as connections.
If the reader is slower, lines are dropped, and one line reports how many."""

LOG_GATHER_S = 0.02
"""How long lines of the log are gathered before they are written."""

LOG_END_S_MAX = 0.5
"""Time to write the waiting lines when the process ends. A live reader needs less."""

TRACE_EVENTS = 4096
"""Events of ticks in a trace, unless all are asked for: a megabyte, and the last seconds."""

TRACE_REQUESTS = 256
"""Requests in a trace, unless all are asked for."""

TRACE_SLICE_EVENTS = 64
"""Events that are written out in one go: about a millisecond, in which nothing else may run."""

TRACE_S_MAX = 60.0
"""Time to read a trace: a key has one at a time."""

PAGE_TEXT_CHARACTERS = 16_384
"""Text of all slots on the page together: with hundreds of them each has a few words."""
