"""Every upper bound of the engine that is not a setting, with the reason for its value.

Input is checked before it reaches native code (invariant 9). The bounds of settings are with their
definitions in `jitney.config`.

Tests: tests/unit/core/test_params.py and tests/unit/engine/test_engine.py.
"""

COMPLETIONS_MAX = 16
"""`n`: completions of one request. Each takes a slot. More than this is a batch job."""

STOP_STRINGS_MAX = 16
STOP_STRING_CHARACTERS_MAX = 256
"""Stop strings are searched at every token, and text is held back while it may match one."""

STOP_TOKENS_MAX = 256
LOGPROBS_MAX = 20
"""Alternatives per position, as in OpenAI's API. Memory grows with positions times this."""

SCORED_SPAN_MAX = 128
"""Prompt tokens of one batch whose logprobs are wanted; the sequences of a batch have equal parts.
Each is scored over the whole vocabulary, and the budget of the batch does not count that."""

LOGIT_BIAS_ENTRIES_MAX = 1024
LOGIT_BIAS_MAX = 100.0
"""Magnitude of one bias, as in OpenAI's API."""

TEMPERATURE_MAX = 2.0
TOP_K_MAX = 1_000_000
PENALTY_MAX = 2.0
REPETITION_PENALTY_MIN = 0.01
REPETITION_PENALTY_MAX = 10.0
"""Logits are divided by it. A value nearer to 0 would make them too large for a float."""
SEED_MAX = 2**63 - 1
TOKENS_MAX = 2**31 - 1
"""Any count of tokens must fit the 32-bit integers of the native libraries."""

CONSTRAINT_CHARACTERS_MAX = 262_144
CONSTRAINT_COMPILE_S_MAX = 2.0
CONSTRAINT_COMPILE_BYTES_MAX = 2**28
"""A schema or grammar may come from a hostile caller. So its size is bounded, and the time and
memory to compile it. The largest useful ones take a tenth of that memory."""

CONSTRAINT_AGAIN_S_MAX = 0.1
"""A constraint that was dropped from the cache is compiled again when its slot is opened. Everybody
in the batch waits for it: this long at most, for all constraints together. An ordinary one takes a
tenth."""

CONSTRAINTS_LOST_S_MAX = 1.0
"""The same in the first batch of a process. A process that replaces another one has no compiled
constraints, and the streams that go on need theirs."""

CONSTRAINT_TOKEN_S_MAX = 0.003
CONSTRAINT_EXTRA_S_MAX = 0.15
"""Everybody in the batch waits while constraints are applied. The first is the processor time of a
constraint for each token. The second is what all constraints together may take beyond that. An
ordinary schema takes 0.0001 s per token. An ambiguous grammar takes more as its text grows."""

REGEX_CHARACTERS_MAX = 32_768
"""To apply a regex takes time at each token in proportion to its length, and everybody in the batch
waits: 0.01 s at this length, 0.3 s at six times this length."""

CHOICES_MAX = 10_000
PROMPT_CHARACTERS_MAX = 10_000_000
"""A text longer than this is refused before it is tokenised."""

COPIED_TOKENS_MAX = 4096
"""Tokens of shared prefixes that new sequences get in one tick, copied or taken over with the slot.
The one that reaches it is the last. Where each slot has its own cells, a copy moves bytes: 50 KB a
token for a small model. Twelve copies of 4,000 tokens in one tick stopped everybody for 0.8 s."""

SLICE_CHARACTERS = 65_536
SLICE_TEXTS = 256
"""How much text is tokenised in one step, about ten milliseconds. After each step others get their
turn, and work that nobody waits for ends. One text is never cut: that could change its tokens."""

TEMPLATE_CHARACTERS_MAX = 1_000_000
TEMPLATE_COMPILE_S_MAX = 60.0
"""The longest chat templates in use have about 20,000 characters and take a tenth of a second. But
it is wall-clock time, with the start of a process that stands back, and a machine that is eight
times too busy took 15 s for it."""

TEMPLATE_S_MAX = 2.0
"""For one chat. An ordinary chat takes a thousandth of it, the longest allowed one a fifth. It is
wall-clock time, so a busy machine needs some reserve."""

TEMPLATE_BYTES_MAX = 2**29
"""For one chat. The longest allowed chat, with the worst characters, has 120 MB as JSON and is in
memory three times while it is read."""

TEMPLATE_QUICK_S = 0.1
"""A longer wait for a template means that an unusual chat is being rendered."""

TEMPLATE_TOGETHER_S = 0.5
"""For up to 64 short chats at once, a hundred times what they usually take. If they take longer,
each of them is rendered alone."""

TEMPLATE_WAIT_S_MAX = 4.0
"""The time of two chats at their limit. A caller that waited this long is asked to try again."""

TENANT_CHARACTERS_MAX = 256
CALLER_ID_CHARACTERS_MAX = 256
FAILURES_MAX = 4
"""A sequence that was part of this many backend failures in a row counts as their cause."""

SUSPECT_FAILURES = 2
"""From this many failures in a row on, a sequence is a suspect and runs alone in its batch. That
shows which one is the cause."""

PREFIX_STRIDE = 8
"""Prefixes are indexed at multiples of this many tokens. The rest of a match is compared. A shorter
prompt is always computed again. Half of this value would double the time to index a long prompt
(0.4 ms for 1,000 tokens), only to save prompts that cost almost nothing."""

PREFIX_WAIT_MIN = 32
"""A request waits for the prefill of another one only if that saves at least this many tokens."""

FETCH_S_MAX = 10.0
"""The longest wait for a prefix from the disk. At 100 MB a second that is enough for the prefix of
a prompt that takes minutes; a disk that is slower or hangs costs each long prompt no more."""

PAUSE_S_MAX = 600.0
"""All pauses of a request together: a paused request takes memory."""

PAUSED_MAX = 1024
"""Sequences that may be paused, whatever the size of the queue: each tick looks at all of them."""

BATCH_FACTOR = 20.0
"""A batch that takes this many times as long as others of its size is stuck. A busy neighbour can
slow a machine ten times."""

BATCH_S_MIN = 20.0
"""No batch is stuck before this time. A wrong verdict costs a reload of the model, and a failure is
counted for each sequence of the batch."""

BATCH_FIRST_S = 60.0
BATCH_TOKEN_S = 0.5
BATCH_S_MAX = 300.0
"""The limit of a batch without measurements: BATCH_FIRST_S, and BATCH_TOKEN_S for each token, up to
BATCH_S_MAX. BATCH_S_MAX also bounds a batch with measurements. The first batch of a process may
always take BATCH_FIRST_S, because it may have to prepare kernels."""

BATCH_FACTOR_MIN = 3.0
"""If the measured machine is so slow that these limits are too small, a batch may take this many
times as long as others of its size."""

RESET_S_MAX = 60.0
"""For a backend to empty its memory."""

UNREAD_BYTES_MAX = 131_072
UNREAD_S_MAX = 2.0
"""What is kept for an HTTP reader that has stopped, by estimate. The request ends when more bytes
are unread than UNREAD_BYTES_MAX and the oldest has been unread for longer than UNREAD_S_MAX. With
the size alone, sixteen completions with twenty logprobs each would end when the event loop is late
by seven ticks."""

GIVE_UP_ATTEMPTS = 5
GIVE_UP_S = 120.0
"""The engine gives up when the backend failed to start this often in a row and is lost for this
long. A count alone would give up on a machine that lacks memory for a few seconds."""

RETRY_AFTER_S_MAX = 600
"""The longest wait that a caller is asked for before it tries again."""

QUEUE_SHARE = 0.5
RUNNING_SHARE = 0.75
"""The share of the queue, and of `max_num_seqs`, that one of several keys may hold. One key alone
can use the machine well, and others still find room in both."""
