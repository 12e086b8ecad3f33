"""Bugs that are put into the source on purpose, each with the checker that must find it.

The first eight are those of the pseudo-code that the project grew from; the others are mistakes
that continuous batching invites. A plant replaces exact snippets, each of which must stand in its
file exactly once. Where an assertion of the core would stop the bug on the spot, the plant takes
that away as well, so that the checker has to find it from outside.
"""

from tests.simulation.fleet.plants import OF_THE_FLEET
from tests.simulation.planting import Table, plants
from tests.simulation.plants_of_background import OF_BACKGROUND
from tests.simulation.plants_of_steering import OF_JOINING, OF_STEERING
from tests.simulation.plants_of_work import OF_WORK

_SCHEDULER = "jitney/core/scheduler.py"
_BATCH_CHOICE = "jitney/core/batch_choice.py"
_MEMORY = "jitney/core/memory.py"
_LEDGER = "jitney/core/ledger.py"
_TICK = "jitney/engine/tick.py"
_MIX = "jitney/core/rules/mix.py"
_QUEUE = "jitney/core/rules/queue.py"
_SHARES = "jitney/core/rules/shares.py"
_REGISTRY = "jitney/core/registry.py"
_PREFIX = "jitney/core/prefix.py"
_STOP = "jitney/text/stop.py"
_SLOTS = "jitney/backends/shared/slots.py"
_PREEMPTION = "jitney/core/preemption.py"
_BUDGET_ASSERT = (
    _SCHEDULER,
    "        assert token_count <= self._settings.max_num_batched_tokens, token_count\n",
    "",
)

PSEUDO_CODE: Table = {
    ("the slot is the index in the batch", "capacity"): [
        (
            _SCHEDULER,
            "Batch(self._batch_number, operations, tuple(entries))",
            "Batch(self._batch_number, operations, tuple(Entry(at, each.start, each.tokens, "
            "each.wants_token, each.continues) for at, each in enumerate(entries)))",
        )
    ],
    ("the position grows by one after a whole prompt", "ledger"): [
        (_SCHEDULER, "sequence.planned = start + span", "sequence.planned = start + 1")
    ],
    ("the token is read at the request's place, not at the batch's", "oracle"): [
        (
            _SCHEDULER,
            "parts = zip(planned.sequences, batch.entries, outcome.samples, strict=True)",
            "by_slot = sorted(range(len(batch.entries)), key=lambda at: batch.entries[at].slot)\n"
            "        samples = [outcome.samples[at] for at in by_slot]\n"
            "        parts = zip(planned.sequences, batch.entries, samples, strict=True)",
        )
    ],
    ("completed ones are erased before they are answered", "ending"): [
        (
            _TICK,
            "del self._collectors[event.request_id]\n                self._ended.append(collector)",
            "del self._collectors[event.request_id]",
        )
    ],
    ("a failed batch just returns, and is tried again for ever", "isolation"): [
        (_TICK, "            self._lose(outcome, now)\n", "")
    ],
    ("memory is never freed", "ledger"): [
        (
            _MEMORY,
            "        self.ledger.release(holding.slot)\n"
            "        self._operations.append(Release(holding.slot))\n",
            "",
        )
    ],
    ("a prompt is not cut into chunks", "capacity"): [
        (
            _MIX,
            "span = min(prefill.tokens, chunk, left.get(prefill.tenant, 0))",
            "span = min(prefill.tokens, left.get(prefill.tenant, 0))",
        ),
        (_MIX, "+ min(prefill.tokens, chunk)", "+ prefill.tokens"),
    ],
    ("the budget is not applied to prefill", "capacity"): [
        (
            _MIX,
            "span = min(prefill.tokens, chunk, left.get(prefill.tenant, 0))",
            "span = min(prefill.tokens, chunk)",
        ),
        (
            _MIX,
            "        if span:\n            left",
            "        if prefill.tenant in left:\n            left",
        ),
        (_MIX, "    assert sum(spans) <= tokens, (sum(spans), tokens)\n", ""),
        _BUDGET_ASSERT,
    ],
}

OF_MEMORY: Table = {
    ("a prefix is shared across scopes", "scope"): [
        (_MEMORY, 'return "scope " + sequence.request.scope', 'return "scope"')
    ],
    ("a prefix is matched one token too far", "scope"): [
        (
            _PREFIX,
            "common = depth * PREFIX_STRIDE + chain",
            "common = depth * PREFIX_STRIDE + 1 + chain",
        )
    ],
    ("a copy is one token too long", "capacity"): [
        (
            _MEMORY,
            "Copy(source.slot, slot, match.length)",
            "Copy(source.slot, slot, match.length + 1)",
        )
    ],
    ("the source of a copy is evicted to make room for it", "capacity"): [
        (_MEMORY, "            if holding is not pinned:\n", "            if holding:\n"),
        (_LEDGER, "        assert length <= self.length(source), (source, length)\n", ""),
    ],
    ("the ledger forgets that blocks are shared", "ledger"): [
        (_LEDGER, "            self._tips[target].references += 1\n", "")
    ],
    ("what a batch in flight computed beyond the end is not cut off", "ledger"): [
        (
            _MEMORY,
            "                self._operations.append(Truncate(holding.slot, sequence.computed))\n",
            "",
        )
    ],
    ("a preempted sequence loses a token", "oracle"): [
        (
            _PREEMPTION,
            "        registry.wait_again(sequence)\n        sequence.history.preempted_count +=",
            "        if sequence.completion_count:\n"
            "            sequence.tokens.pop()\n"
            "        registry.wait_again(sequence)\n        sequence.history.preempted_count +=",
        )
    ],
    ("saved memory is restored into the wrong slot", "capacity"): [
        (
            _MEMORY,
            "Restore(saved.ticket, slot)",
            "Restore(saved.ticket, self._free[-1] if self._free else slot)",
        )
    ],
    ("memory is promised to be saved and is not", "capacity"): [
        (_MEMORY, "        self._operations.append(Save(sequence.slot, self._ticket_next))\n", "")
    ],
}

OF_ANSWERS: Table = {
    ("the draw depends on the slot", "oracle"): [
        (
            _MEMORY,
            "Open(slot, sequence.sampling)",
            'Open(slot, __import__("dataclasses").replace(sequence.sampling, '
            "seed=sequence.sampling.seed // 2 + slot))",
        )
    ],
    ("all completions of a request draw alike", "oracle"): [
        ("jitney/core/sequence.py", "index * 0x9E3779B97F4A7C15", "index * 0")
    ],
    ("the beginning of a stop string leaks", "stream"): [
        (_STOP, "text, self._table.length(self._state)))", "text, 0))")
    ],
    ("a stop string is looked for in each token by itself", "oracle"): [
        (_STOP, "        before = self._state\n", "        before = 0\n")
    ],
    ("a stop string inside the beginning of another is missed", "oracle"): [
        ("jitney/core/stops.py", "append(self._matches[retreat])", "append(0)")
    ],
    ("half characters are sent", "stream"): [
        (
            "jitney/text/detokenizer.py",
            "text = self._decoder.decode(piece)",
            'text = piece.decode("utf-8", "replace")',
        )
    ],
    ("a slow reader gets only the last delta", "stream"): [
        ("jitney/engine/mailbox.py", "unread.deltas.append(delta)", "unread.deltas = [delta]")
    ],
    ("a stop string is found and the sequence goes on", "oracle"): [
        (_TICK, "verdicts.append((event.request_id, event.index, verdict))", "pass")
    ],
    ("a finish is told twice", "ending"): [
        (
            _SCHEDULER,
            "self._registry.end(sequence, FinishReason.LENGTH, now)",
            "self._registry.end(sequence, FinishReason.LENGTH, now)\n"
            "            self._registry.events.append(self._registry.events[-1])",
        )
    ],
    ("a cancel while it runs tells nobody", "ending"): [
        (
            _SCHEDULER,
            "self._registry.end(sequence, FinishReason.CANCELLED, now)",
            "self._registry.end(sequence, FinishReason.CANCELLED, now)\n"
            '            if phase != "waiting":\n'
            "                self._registry.events.pop()",
        )
    ],
    ("cached tokens are not counted", "usage"): [
        (
            _REGISTRY,
            "history.cached_count = min(sequence.computed, len(sequence.request.prompt))",
            "history.cached_count = 0",
        )
    ],
}

OF_WAITING_AND_FAULTS: Table = {
    ("the bound of the queue is off by one", "limits"): [
        (_QUEUE, "count <= requests_max and", "count <= requests_max + 1 and")
    ],
    ("a tenant may run one more than its share", "shares"): [
        (
            _SHARES,
            "if held.running_count >= request.share.running_max:",
            "if held.running_count > request.share.running_max:",
        )
    ],
    ("a tenant's share of the queue is off by one", "shares"): [
        (_SHARES, "count <= share.waiting_max and", "count <= share.waiting_max + 1 and")
    ],
    ("nobody ever becomes an elder", "waiting"): [
        (
            _QUEUE,
            "                break\n            yield sequence",
            "                break\n            break",
        ),
        (
            _QUEUE,
            "            if now - sequence.accepted_at <= self._overtake_s:\n"
            "                yield sequence",
            "            yield sequence",
        ),
    ],
    ("the deadline of those who wait is forgotten", "waiting"): [
        (
            _REGISTRY,
            "self._note(sequence, sequence.accepted_at + wait_s, is_until_start=True)",
            "pass",
        )
    ],
    ("the budget is exceeded by one", "capacity"): [
        (
            _BATCH_CHOICE,
            "            settings.max_num_batched_tokens,\n",
            "            settings.max_num_batched_tokens + 1,\n",
        ),
        _BUDGET_ASSERT,
    ],
    ("failures are never counted", "waiting"): [
        (_SCHEDULER, "            sequence.history.failed_count += 1\n", "")
    ],
    ("a fault in the middle of a prompt is ignored", "isolation"): [
        (
            _SCHEDULER,
            "if sample.fault is not None or (wants_token and token is None):",
            "if (sample.fault is not None and wants_token) or (wants_token and token is None):",
        )
    ],
}

OF_FLIGHTS: Table = {
    ("a batch under way that nobody wants is not waited for", "ending"): [
        (_TICK, "self._ended or self._in_flight)", "self._collectors)")
    ],
    ("memory is taken from one whose batch is under way", "capacity"): [
        (
            "jitney/core/rules/victim.py",
            "[sequence for sequence in candidates if not sequence.is_in_flight]",
            "list(candidates)",
        ),
        (
            _PREEMPTION,
            '        assert not sequence.is_in_flight, "its batch must return first"\n',
            "",
        ),
    ],
}

OF_ROUNDING: Table = {
    ("what was generated is computed again in one span", "oracle"): [
        (_REGISTRY, "if want > 1 and self._decodes_differ:", "if want < 0:")
    ],
    ("a prefix is reused that was computed in another way", "oracle"): [
        (_PREFIX, "if spanned != theirs:", "if spanned < 0:")
    ],
    ("the last token of a prompt is computed by itself", "oracle"): [
        (
            _SLOTS,
            "return entry.length == 1 and 0 < entry.start < prompt_count",
            "return entry.length < prompt_count < 0",
        )
    ],
    ("a pass does not fill its groups of rows", "oracle"): [
        (_SLOTS, "return -rows % group", "return rows % group * 0")
    ],
}

OF_THE_PSEUDO_CODE = plants(PSEUDO_CODE)
PLANTS = (
    *OF_THE_PSEUDO_CODE,
    *plants(OF_MEMORY),
    *plants(OF_WORK),
    *plants(OF_ANSWERS),
    *plants(OF_WAITING_AND_FAULTS),
    *plants(OF_FLIGHTS),
    *plants(OF_ROUNDING),
    *plants(OF_JOINING),
    *plants(OF_STEERING),
    *OF_THE_FLEET,
    *plants(OF_BACKGROUND),
)
