"""Bugs that are put into the source on purpose, each with the checker that must find it.

The first eight are those of the pseudo-code that the project grew from; the others are mistakes
that continuous batching invites. A plant replaces exact snippets, each of which must stand in its
file exactly once. Where an assertion of the core would stop the bug on the spot, the plant takes
that away as well, so that the checker has to find it from outside.
"""

from tests.simulation.fleet.plants import OF_THE_FLEET
from tests.simulation.planting import planted
from tests.simulation.plants_of_background import OF_BACKGROUND
from tests.simulation.plants_of_steering import OF_JOINING, OF_STEERING
from tests.simulation.plants_of_work import OF_WORK

_SCHEDULER = "jitney/core/scheduler.py"
_BATCH_CHOICE = "jitney/core/batch_choice.py"
_MEMORY = "jitney/core/memory.py"
_LEDGER = "jitney/core/ledger.py"
_TICK = "jitney/engine/tick.py"
_BUDGET_ASSERT = (
    _SCHEDULER,
    "        assert token_count <= self._settings.max_num_batched_tokens, token_count\n",
    "",
)

OF_THE_PSEUDO_CODE = (
    planted(
        "the slot is the index in the batch",
        "capacity",
        (
            _SCHEDULER,
            "Batch(self._batch_number, operations, tuple(entries))",
            "Batch(self._batch_number, operations, tuple(Entry(at, each.start, each.tokens, "
            "each.wants_token, each.continues) for at, each in enumerate(entries)))",
        ),
    ),
    planted(
        "the position grows by one after a whole prompt",
        "ledger",
        (_SCHEDULER, "sequence.planned = start + span", "sequence.planned = start + 1"),
    ),
    planted(
        "the token is read at the request's place, not at the batch's",
        "oracle",
        (
            _SCHEDULER,
            "pairs = zip(batch.entries, outcome.samples, strict=True)",
            "by_slot = sorted(range(len(batch.entries)), key=lambda at: batch.entries[at].slot)\n"
            "        samples = [outcome.samples[at] for at in by_slot]\n"
            "        pairs = zip(batch.entries, samples, strict=True)",
        ),
    ),
    planted(
        "completed ones are erased before they are answered",
        "ending",
        (
            _TICK,
            "del self._collectors[event.request_id]\n                self._ended.append(collector)",
            "del self._collectors[event.request_id]",
        ),
    ),
    planted(
        "a failed batch just returns, and is tried again for ever",
        "isolation",
        (_TICK, "            self._lose(outcome, now)\n", ""),
    ),
    planted(
        "memory is never freed",
        "ledger",
        (
            _MEMORY,
            "        self.ledger.release(holding.slot)\n"
            "        self._operations.append(Release(holding.slot))\n",
            "",
        ),
    ),
    planted(
        "a prompt is not cut into chunks",
        "capacity",
        (
            "jitney/core/rules/mix.py",
            "span = min(prefill.tokens, chunk, left.get(prefill.tenant, 0))",
            "span = min(prefill.tokens, left.get(prefill.tenant, 0))",
        ),
        ("jitney/core/rules/mix.py", "+ min(prefill.tokens, chunk)", "+ prefill.tokens"),
    ),
    planted(
        "the budget is not applied to prefill",
        "capacity",
        (
            "jitney/core/rules/mix.py",
            "span = min(prefill.tokens, chunk, left.get(prefill.tenant, 0))",
            "span = min(prefill.tokens, chunk)",
        ),
        (
            "jitney/core/rules/mix.py",
            "        if span:\n            left",
            "        if prefill.tenant in left:\n            left",
        ),
        (
            "jitney/core/rules/mix.py",
            "    assert sum(spans) <= tokens, (sum(spans), tokens)\n",
            "",
        ),
        _BUDGET_ASSERT,
    ),
)

OF_MEMORY = (
    planted(
        "a prefix is shared across scopes",
        "scope",
        (_MEMORY, 'return "scope " + sequence.request.scope', 'return "scope"'),
    ),
    planted(
        "a prefix is matched one token too far",
        "scope",
        (
            "jitney/core/prefix.py",
            "common = depth * PREFIX_STRIDE + chain",
            "common = depth * PREFIX_STRIDE + 1 + chain",
        ),
    ),
    planted(
        "a copy is one token too long",
        "capacity",
        (
            _MEMORY,
            "Copy(source.slot, slot, match.length)",
            "Copy(source.slot, slot, match.length + 1)",
        ),
    ),
    planted(
        "the source of a copy is evicted to make room for it",
        "capacity",
        (_MEMORY, "            if holding is not pinned:\n", "            if holding:\n"),
        (_LEDGER, "        assert length <= self.length(source), (source, length)\n", ""),
    ),
    planted(
        "the ledger forgets that blocks are shared",
        "ledger",
        (_LEDGER, "            self._tips[target].references += 1\n", ""),
    ),
    planted(
        "what a batch in flight computed beyond the end is not cut off",
        "ledger",
        (
            _MEMORY,
            "                self._operations.append(Truncate(holding.slot, sequence.computed))\n",
            "",
        ),
    ),
    planted(
        "a preempted sequence loses a token",
        "oracle",
        (
            "jitney/core/preemption.py",
            "        registry.wait_again(sequence)\n        sequence.history.preempted_count +=",
            "        if sequence.completion_count:\n"
            "            sequence.tokens.pop()\n"
            "        registry.wait_again(sequence)\n        sequence.history.preempted_count +=",
        ),
    ),
    planted(
        "saved memory is restored into the wrong slot",
        "capacity",
        (
            _MEMORY,
            "Restore(saved.ticket, slot)",
            "Restore(saved.ticket, self._free[-1] if self._free else slot)",
        ),
    ),
    planted(
        "memory is promised to be saved and is not",
        "capacity",
        (_MEMORY, "        self._operations.append(Save(sequence.slot, self._ticket_next))\n", ""),
    ),
)

OF_ANSWERS = (
    planted(
        "the draw depends on the slot",
        "oracle",
        (
            _MEMORY,
            "Open(slot, sequence.sampling)",
            'Open(slot, __import__("dataclasses").replace(sequence.sampling, '
            "seed=sequence.sampling.seed // 2 + slot))",
        ),
    ),
    planted(
        "all completions of a request draw alike",
        "oracle",
        ("jitney/core/sequence.py", "index * 0x9E3779B97F4A7C15", "index * 0"),
    ),
    planted(
        "the beginning of a stop string leaks",
        "stream",
        ("jitney/text/stop.py", "text, self._table.length(self._state)))", "text, 0))"),
    ),
    planted(
        "a stop string is looked for in each token by itself",
        "oracle",
        ("jitney/text/stop.py", "        before = self._state\n", "        before = 0\n"),
    ),
    planted(
        "a stop string inside the beginning of another is missed",
        "oracle",
        ("jitney/core/stops.py", "append(self._matches[retreat])", "append(0)"),
    ),
    planted(
        "half characters are sent",
        "stream",
        (
            "jitney/text/detokenizer.py",
            "return self._decoder.decode(self._pieces[token])",
            'return self._pieces[token].decode("utf-8", "replace")',
        ),
    ),
    planted(
        "a slow reader gets only the last delta",
        "stream",
        ("jitney/engine/mailbox.py", "unread.deltas.append(delta)", "unread.deltas = [delta]"),
    ),
    planted(
        "a stop string is found and the sequence goes on",
        "oracle",
        (_TICK, "verdicts.append((event.request_id, event.index, verdict))", "pass"),
    ),
    planted(
        "a finish is told twice",
        "ending",
        (
            _SCHEDULER,
            "self._registry.end(sequence, FinishReason.LENGTH, now)",
            "self._registry.end(sequence, FinishReason.LENGTH, now)\n"
            "            self._registry.events.append(self._registry.events[-1])",
        ),
    ),
    planted(
        "a cancel while it runs tells nobody",
        "ending",
        (
            _SCHEDULER,
            "self._registry.end(sequence, FinishReason.CANCELLED, now)",
            "self._registry.end(sequence, FinishReason.CANCELLED, now)\n"
            '            if phase != "waiting":\n'
            "                self._registry.events.pop()",
        ),
    ),
    planted(
        "cached tokens are not counted",
        "usage",
        (
            "jitney/core/registry.py",
            "history.cached_count = min(sequence.computed, len(sequence.request.prompt))",
            "history.cached_count = 0",
        ),
    ),
)

OF_WAITING_AND_FAULTS = (
    planted(
        "the bound of the queue is off by one",
        "limits",
        (
            "jitney/core/rules/queue.py",
            "count <= requests_max and",
            "count <= requests_max + 1 and",
        ),
    ),
    planted(
        "a tenant may run one more than its share",
        "shares",
        (
            "jitney/core/rules/shares.py",
            "if held.running_count >= request.share.running_max:",
            "if held.running_count > request.share.running_max:",
        ),
    ),
    planted(
        "a tenant's share of the queue is off by one",
        "shares",
        (
            "jitney/core/rules/shares.py",
            "count <= share.waiting_max and",
            "count <= share.waiting_max + 1 and",
        ),
    ),
    planted(
        "nobody ever becomes an elder",
        "waiting",
        (
            "jitney/core/rules/queue.py",
            "                break\n            elders.append(sequence)",
            "                break\n            break",
        ),
        (
            "jitney/core/rules/queue.py",
            "            if now - sequence.accepted_at <= self._overtake_s:\n"
            "                yield sequence",
            "            yield sequence",
        ),
    ),
    planted(
        "the deadline of those who wait is forgotten",
        "waiting",
        (
            "jitney/core/registry.py",
            "self._note(sequence, sequence.accepted_at + wait_s, is_until_start=True)",
            "pass",
        ),
    ),
    planted(
        "the budget is exceeded by one",
        "capacity",
        (
            _BATCH_CHOICE,
            "            settings.max_num_batched_tokens,\n",
            "            settings.max_num_batched_tokens + 1,\n",
        ),
        _BUDGET_ASSERT,
    ),
    planted(
        "failures are never counted",
        "waiting",
        (_SCHEDULER, "            sequence.history.failed_count += 1\n", ""),
    ),
    planted(
        "a fault in the middle of a prompt is ignored",
        "isolation",
        (
            _SCHEDULER,
            "if sample.fault is not None or (entry.wants_token and sample.token is None):",
            "if (sample.fault is not None and entry.wants_token) "
            "or (entry.wants_token and sample.token is None):",
        ),
    ),
)

OF_FLIGHTS = (
    planted(
        "a batch under way that nobody wants is not waited for",
        "ending",
        (_TICK, "self._ended or self._in_flight)", "self._collectors)"),
    ),
    planted(
        "memory is taken from one whose batch is under way",
        "capacity",
        (
            "jitney/core/rules/victim.py",
            "[sequence for sequence in candidates if not sequence.is_in_flight]",
            "list(candidates)",
        ),
        (
            "jitney/core/preemption.py",
            '        assert not sequence.is_in_flight, "its batch must return first"\n',
            "",
        ),
    ),
)

OF_ROUNDING = (
    planted(
        "what was generated is computed again in one span",
        "oracle",
        (_BATCH_CHOICE, "if want > 1 and self._decodes_differ:", "if want < 0:"),
    ),
    planted(
        "a prefix is reused that was computed in another way",
        "oracle",
        ("jitney/core/prefix.py", "if spanned != theirs:", "if spanned < 0:"),
    ),
    planted(
        "the last token of a prompt is computed by itself",
        "oracle",
        (
            "jitney/backends/shared/slots.py",
            "return entry.length == 1 and 0 < entry.start < prompt_count",
            "return entry.length < prompt_count < 0",
        ),
    ),
    planted(
        "a pass does not fill its groups of rows",
        "oracle",
        ("jitney/backends/shared/slots.py", "return -rows % group", "return rows % group * 0"),
    ),
)

PLANTS = (
    *OF_THE_PSEUDO_CODE,
    *OF_MEMORY,
    *OF_WORK,
    *OF_ANSWERS,
    *OF_WAITING_AND_FAULTS,
    *OF_FLIGHTS,
    *OF_ROUNDING,
    *OF_JOINING,
    *OF_STEERING,
    *OF_THE_FLEET,
    *OF_BACKGROUND,
)
