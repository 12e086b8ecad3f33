"""Every upper bound of the engine that is not a setting, with the reason for its value.

Checked on entry, before anything reaches native code (invariant 9). Settings have their own
bounds beside their definition in `jitney.config`.

Tests: tests/unit/core/test_params.py and tests/unit/engine/test_engine.py.
"""

COMPLETIONS_MAX = 16
"""`n`: completions of one request. Each takes a slot; more than this is a batch job."""

STOP_STRINGS_MAX = 16
STOP_STRING_CHARACTERS_MAX = 256
"""Stop strings are searched at every token, and hold text back for as long as they may match."""

STOP_TOKENS_MAX = 256
LOGPROBS_MAX = 20
"""Alternatives per position, as in OpenAI's API; memory is positions times this."""

SCORED_SPAN_MAX = 128
"""Tokens of a prompt whose logprobs are wanted, in one batch: each is scored over all the
vocabulary, and that is not in the budget of the batch."""

LOGIT_BIAS_ENTRIES_MAX = 1024
LOGIT_BIAS_MAX = 100.0
"""Magnitude of one bias, as in OpenAI's API."""

TEMPERATURE_MAX = 2.0
TOP_K_MAX = 1_000_000
PENALTY_MAX = 2.0
REPETITION_PENALTY_MIN = 0.01
REPETITION_PENALTY_MAX = 10.0
"""Logits are divided by it; nearer to nothing they would leave the range of numbers."""
SEED_MAX = 2**63 - 1
TOKENS_MAX = 2**31 - 1
"""Any count of tokens must fit the 32-bit integers of the native libraries."""

CONSTRAINT_CHARACTERS_MAX = 262_144
CONSTRAINT_COMPILE_S_MAX = 2.0
CONSTRAINT_COMPILE_BYTES_MAX = 2**28
"""A schema or grammar is text from a stranger: bounded in size, and in time and memory to compile.
The largest ones that are of use take a tenth of that memory."""

CONSTRAINT_AGAIN_S_MAX = 0.1
"""Constraints that are not kept any more are compiled again when their slots are opened, and all
who are in the batch wait for so long, for all of them together. An ordinary one takes a tenth."""

CONSTRAINTS_LOST_S_MAX = 1.0
"""The same in the first batch of a process: one that takes the place of another has lost all that
were compiled, and streams that go on need theirs. In any other process none is lost by then."""

CONSTRAINT_TOKEN_S_MAX = 0.003
CONSTRAINT_EXTRA_S_MAX = 0.15
"""All who are in the batch wait while constraints are followed: the processor's time that they may
take for each token, and what all of them together may take beyond that. An ordinary schema takes
0.0001 s at a token; an ambiguous grammar takes more and more the longer its text becomes."""

REGEX_CHARACTERS_MAX = 32_768
"""Following a regex takes time at each token in proportion to its length, and all who are in the
batch wait for it: 0.01 s at this length, 0.3 s at six times as much."""

CHOICES_MAX = 10_000
PROMPT_CHARACTERS_MAX = 10_000_000
"""A text longer than this is refused before it is tokenised."""

COPIED_TOKENS_MAX = 4096
"""Tokens of shared prefixes that are copied into new slots in one tick; the one that reaches it is
the last. Where slots have cells of their own a copy moves bytes, 50 KB a token for a small model:
twelve copies of 4,000 tokens in one tick stopped everybody for 0.8 s."""

SLICE_CHARACTERS = 65_536
SLICE_TEXTS = 256
"""Texts that are tokenised in one go: others have their turn after it, and work that nobody waits
for any more ends there. Some ten milliseconds. A text of its own is never cut, for its tokens
might be others then."""

TEMPLATE_CHARACTERS_MAX = 1_000_000
TEMPLATE_COMPILE_S_MAX = 10.0
"""The longest chat templates in use have some 20,000 characters, and take a tenth of a second."""

TEMPLATE_S_MAX = 2.0
"""For one chat: an ordinary one takes a thousandth of it, the longest that is taken a fifth. It is
time on the clock, so a machine that has much else to do needs some to spare."""

TEMPLATE_BYTES_MAX = 2**29
"""For one chat: the longest that is taken, in characters of the worst kind, has 120 MB as JSON, and
is in memory three times while it is read."""

TEMPLATE_QUICK_S = 0.1
"""Whoever waits longer for a template waits for a chat that is not ordinary."""

TEMPLATE_WAIT_S_MAX = 4.0
"""The time of two chats at their limit. Whoever waited so long is told to come back."""

TENANT_CHARACTERS_MAX = 256
CALLER_ID_CHARACTERS_MAX = 256
STRIKES_MAX = 4
"""Backend failures in a row that a sequence may be part of before it is taken to be their cause."""

STRIKES_QUARANTINE = 2
"""From this many strikes on, suspects run one to a batch, so that the innocent are told apart."""

PREFIX_CHUNK = 8
"""Prefixes are indexed at multiples of this many tokens; the rest of a match is compared. A prompt
of fewer is computed again each time. Half of it would double what a long prompt takes to index,
0.4 ms for 1,000 tokens, for prompts that cost next to nothing."""

PREFIX_WAIT_MIN = 32
"""A request waits for another one's prefill only when that saves at least this many tokens."""

PAUSE_S_MAX = 600.0
"""All pauses of a request together: it takes memory, and one of the places of the paused."""

PAUSED_MAX = 1024
"""Sequences that may be paused, however many may wait: each tick looks at all of them."""

BATCH_FACTOR = 20.0
"""A batch that takes so many times as long as others of its size is stuck. A busy neighbour slows a
machine ten times."""

BATCH_S_MIN = 20.0
"""But none is stuck before: whoever is ended for nothing loads the model again, and who was in the
batch is suspected."""

BATCH_FIRST_S = 60.0
BATCH_TOKEN_S = 0.5
BATCH_S_MAX = 300.0
"""Where nothing was measured, a batch may take the first, and the second for each of its tokens, up
to the third; and no more than that where something was. The first batch of a process, which may
have kernels to prepare, may always take the first."""

BATCH_FACTOR_MIN = 3.0
"""On a machine that was measured to be so slow that all of this is too little, a batch may take so
many times as long as others of its size."""

RESET_S_MAX = 60.0
"""For a backend to empty its memory."""

UNREAD_BYTES_MAX = 131_072
UNREAD_S_MAX = 2.0
"""What is kept for the reader of a stream over HTTP who has stopped, by estimate: when it is more
than the first, and the oldest of it has lain there for longer than the second, the request ends.
By the size alone, sixteen completions with twenty logprobs each would end at the seventh tick that
the event loop is late."""

GIVE_UP_ATTEMPTS = 5
GIVE_UP_S = 120.0
"""A backend that failed to start so often in a row, and is gone for so long, is given up. A count
alone would give up on a machine that has no memory for a few seconds."""

RETRY_AFTER_S_MAX = 600
"""The longest time that a caller is asked to wait before it tries again."""

QUEUE_SHARE = 0.5
RUNNING_SHARE = 0.75
"""What one of several keys may hold of the queue, and of the places to run in: enough to use the
machine well alone, and others always find some of both."""
