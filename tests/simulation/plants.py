"""Bugs that are put into the source on purpose, each with the checker that must find it.

The first eight are those of the pseudo-code that the project grew from; the others are mistakes
that continuous batching invites. A plant replaces exact snippets, each of which must stand in its
file exactly once. Where an assertion of the core would stop the bug on the spot, the plant takes
that away as well, so that the checker has to find it from outside.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """One replacement in one file of the package."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Plant:
    """A bug: what it is, who must find it, and how it is put in."""

    name: str
    checker: str
    changes: tuple[Change, ...]


def _plant(name: str, checker: str, *changes: tuple[str, str, str]) -> Plant:
    return Plant(name, checker, tuple(Change(*change) for change in changes))


_SCHEDULER = "core/scheduler.py"
_MEMORY = "core/memory.py"
_LEDGER = "core/ledger.py"
_TICK = "engine/tick.py"
_BUDGET_ASSERT = (
    _SCHEDULER,
    "        assert batch.token_count <= self._settings.batch_tokens_max, batch.token_count\n",
    "",
)

OF_THE_PSEUDO_CODE = (
    _plant(
        "the slot is the index in the batch",
        "capacity",
        (
            _SCHEDULER,
            "Batch(self._batch_number, operations, tuple(entries))",
            "Batch(self._batch_number, operations, tuple(Entry(at, each.start, each.tokens, "
            "each.wants_token, each.continues) for at, each in enumerate(entries)))",
        ),
    ),
    _plant(
        "the position grows by one after a whole prompt",
        "ledger",
        (_SCHEDULER, "sequence.planned = start + span", "sequence.planned = start + 1"),
    ),
    _plant(
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
    _plant(
        "completed ones are erased before they are answered",
        "ending",
        (
            _TICK,
            "del self._collectors[event.request_id]\n                self._ended.append(collector)",
            "del self._collectors[event.request_id]",
        ),
    ),
    _plant(
        "a failed batch just returns, and is tried again for ever",
        "isolation",
        (_TICK, "            self._lose(outcome, now)\n", ""),
    ),
    _plant(
        "memory is never freed",
        "ledger",
        (
            _MEMORY,
            "        self.ledger.release(holding.slot)\n"
            "        self._operations.append(Release(holding.slot))\n",
            "",
        ),
    ),
    _plant(
        "a prompt is not cut into chunks",
        "capacity",
        (
            "core/mix.py",
            "span = min(want.tokens, chunk, left.get(want.sharer, 0))",
            "span = min(want.tokens, left.get(want.sharer, 0))",
        ),
        ("core/mix.py", "+ min(want.tokens, chunk)", "+ want.tokens"),
    ),
    _plant(
        "the budget is not applied to prefill",
        "capacity",
        (
            "core/mix.py",
            "span = min(want.tokens, chunk, left.get(want.sharer, 0))",
            "span = min(want.tokens, chunk)",
        ),
        (
            "core/mix.py",
            "        if span:\n            left",
            "        if want.sharer in left:\n            left",
        ),
        _BUDGET_ASSERT,
    ),
)

OF_MEMORY = (
    _plant(
        "a prefix is shared across scopes",
        "scope",
        (_MEMORY, 'return "scope " + sequence.request.scope', 'return "scope"'),
    ),
    _plant(
        "a prefix is matched one token too far",
        "scope",
        (
            "core/prefix.py",
            "common = depth * PREFIX_CHUNK + chain",
            "common = depth * PREFIX_CHUNK + 1 + chain",
        ),
    ),
    _plant(
        "a prompt is compared again in every tick",
        "work",
        ("core/chain.py", "checked = self._checked.get(other, 0)", "checked = 0"),
    ),
    _plant(
        "the keys of a prompt are made again in every tick",
        "work",
        (_MEMORY, "if sequence.chain is None:", "if sequence.slot is None:"),
    ),
    _plant(
        "a copy is one token too long",
        "capacity",
        (
            _MEMORY,
            "Copy(source.slot, slot, match.length)",
            "Copy(source.slot, slot, match.length + 1)",
        ),
    ),
    _plant(
        "the source of a copy is evicted to make room for it",
        "capacity",
        (_MEMORY, "            if holding is not pinned:\n", "            if holding:\n"),
        (_LEDGER, "        assert length <= self.length(source), (source, length)\n", ""),
    ),
    _plant(
        "the ledger forgets that blocks are shared",
        "ledger",
        (_LEDGER, "            self._tips[target].references += 1\n", ""),
    ),
    _plant(
        "what a batch in flight computed beyond the end is not cut off",
        "ledger",
        (
            _MEMORY,
            "                self._operations.append(Truncate(holding.slot, sequence.computed))\n",
            "",
        ),
    ),
    _plant(
        "a preempted sequence loses a token",
        "oracle",
        (
            "core/roster.py",
            "        self._wait_again(sequence)\n        sequence.preempted_count += 1\n",
            "        if sequence.completion_count:\n"
            "            sequence.tokens.pop()\n"
            "        self._wait_again(sequence)\n        sequence.preempted_count += 1\n",
        ),
    ),
    _plant(
        "saved memory is restored into the wrong slot",
        "capacity",
        (
            _MEMORY,
            "Restore(sequence.ticket, slot)",
            "Restore(sequence.ticket, self._free[-1] if self._free else slot)",
        ),
    ),
    _plant(
        "memory is promised to be saved and is not",
        "capacity",
        (_MEMORY, "        self._operations.append(Save(sequence.slot, sequence.ticket))\n", ""),
    ),
)

OF_ANSWERS = (
    _plant(
        "the draw depends on the slot",
        "oracle",
        (
            _MEMORY,
            "Open(slot, sequence.sampling)",
            'Open(slot, __import__("dataclasses").replace(sequence.sampling, '
            "seed=sequence.sampling.seed // 2 + slot))",
        ),
    ),
    _plant(
        "all completions of a request draw alike",
        "oracle",
        ("core/sequence.py", "index * 0x9E3779B97F4A7C15", "index * 0"),
    ),
    _plant(
        "the beginning of a stop string leaks",
        "stream",
        ("text/stop.py", "text, self._table.length(self._state)))", "text, 0))"),
    ),
    _plant(
        "a stop string is looked for in each token by itself",
        "oracle",
        ("text/stop.py", "        before = self._state\n", "        before = 0\n"),
    ),
    _plant(
        "a stop string inside the beginning of another is missed",
        "oracle",
        ("core/stops.py", "append(self._matches[retreat])", "append(0)"),
    ),
    _plant(
        "half characters are sent",
        "stream",
        (
            "text/detokenizer.py",
            "return self._decoder.decode(self._pieces[token])",
            'return self._pieces[token].decode("utf-8", "replace")',
        ),
    ),
    _plant(
        "a slow reader gets only the last delta",
        "stream",
        ("engine/mailbox.py", "self.texts.append(delta.text)", "self.texts = [delta.text]"),
    ),
    _plant(
        "a stop string is found and the sequence goes on",
        "oracle",
        (_TICK, "verdicts.append(verdict)", "pass"),
    ),
    _plant(
        "a finish is told twice",
        "ending",
        (
            _SCHEDULER,
            "events.append(self._roster.end(sequence, FinishReason.LENGTH, now))",
            "events += [self._roster.end(sequence, FinishReason.LENGTH, now)] * 2",
        ),
    ),
    _plant(
        "a cancel while it runs tells nobody",
        "ending",
        (
            _SCHEDULER,
            "events.append(self._roster.end(sequence, FinishReason.CANCELLED, now))",
            "ended = self._roster.end(sequence, FinishReason.CANCELLED, now)\n"
            '            events += [ended] if phase == "waiting" else []',
        ),
    ),
    _plant(
        "cached tokens are not counted",
        "usage",
        (
            "core/roster.py",
            "sequence.cached_count = sequence.computed",
            "sequence.cached_count = 0",
        ),
    ),
)

OF_WAITING_AND_FAULTS = (
    _plant(
        "the bound of the queue is off by one",
        "limits",
        (_SCHEDULER, "count <= requests_max and", "count <= requests_max + 1 and"),
    ),
    _plant(
        "a tenant may run one more than its share",
        "shares",
        (
            "core/shares.py",
            "if held.running_count >= request.share.running_max:",
            "if held.running_count > request.share.running_max:",
        ),
    ),
    _plant(
        "a tenant's share of the queue is off by one",
        "shares",
        ("core/shares.py", "count <= share.waiting_max and", "count <= share.waiting_max + 1 and"),
    ),
    _plant(
        "nobody ever becomes an elder",
        "waiting",
        (
            "core/queue.py",
            "                break\n            elders.append(sequence)",
            "                break\n            break",
        ),
        (
            "core/queue.py",
            "            if now - sequence.arrived_at <= self._overtake_s:\n"
            "                yield sequence",
            "            yield sequence",
        ),
    ),
    _plant(
        "the deadline of those who wait is forgotten",
        "waiting",
        (_SCHEDULER, "if is_total or is_wait:", "if is_total:"),
    ),
    _plant(
        "the budget is exceeded by one",
        "capacity",
        (
            _SCHEDULER,
            "            settings.batch_tokens_max, settings.prefill_chunk,",
            "            settings.batch_tokens_max + 1, settings.prefill_chunk,",
        ),
        _BUDGET_ASSERT,
    ),
    _plant(
        "strikes are never counted",
        "waiting",
        (_SCHEDULER, "            sequence.strikes += 1\n", ""),
    ),
    _plant(
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
    _plant(
        "a batch under way that nobody wants is not waited for",
        "isolation",
        (_TICK, "bool(self._collectors or self._ended or self._flights)", "bool(self._collectors)"),
    ),
    _plant(
        "memory is taken from one whose batch is under way",
        "capacity",
        (
            "core/victim.py",
            "[sequence for sequence in candidates if not sequence.is_in_flight]",
            "list(candidates)",
        ),
        (
            "core/roster.py",
            '        assert not sequence.is_in_flight, "its batch must return first"\n',
            "",
        ),
    ),
)

OF_ROUNDING = (
    _plant(
        "what was generated is computed again in one span",
        "oracle",
        (_SCHEDULER, "if want > 1 and self._decodes_differ:", "if want < 0:"),
    ),
    _plant(
        "a prefix is reused that was computed in another way",
        "oracle",
        ("core/prefix.py", "if spanned != theirs:", "if spanned < 0:"),
    ),
    _plant(
        "the last token of a prompt is computed by itself",
        "oracle",
        (
            "backends/shapes.py",
            "return entry.length == 1 and 0 < entry.start < prompt_count",
            "return entry.length < prompt_count < 0",
        ),
    ),
    _plant(
        "a pass does not fill its groups of rows",
        "oracle",
        ("backends/shapes.py", "return -rows % group", "return rows % group * 0"),
    ),
)

_STRATEGY = "core/strategy.py"
_ROSTER = "core/roster.py"

OF_JOINING = (
    _plant(
        "a window counts from the newest",
        "joining",
        (
            "core/queue.py",
            "return next(self._newcomers.ordered(), None)",
            "return max(self._newcomers.ordered(), key=lambda each: each.order, default=None)",
        ),
    ),
    _plant(
        "a window keeps out who ran before",
        "joining",
        (
            _STRATEGY,
            "return self._is_open or sequence.started_at is not None",
            "return self._is_open",
        ),
    ),
    _plant(
        "newcomers do not wait for the window",
        "joining",
        (_STRATEGY, "is_enough = queue.newcomer_count >= min", "is_enough = True or min"),
    ),
    _plant(
        "a group departs one short",
        "joining",
        (_STRATEGY, "if queue.count >= least or drains", "if queue.count >= least - 1 or drains"),
    ),
    _plant(
        "the minimum of a group is not kept",
        "joining",
        (_STRATEGY, "least = max(size, self._settings.group_size_min)", "least = size"),
    ),
    _plant(
        "answers of a group are not held back",
        "joining",
        (
            _STRATEGY,
            "return bool(self._members) and self._settings.group_answers is GroupAnswers.TOGETHER",
            "return False",
        ),
    ),
    _plant(
        "a group waits for its paused members",
        "joining",
        (
            _ROSTER,
            "        self.queue.pause(sequence)\n        self.gate.left(sequence)\n",
            "        self.queue.pause(sequence)\n",
        ),
    ),
)

OF_STEERING = (
    _plant(
        "a paused request that runs goes on",
        "steering",
        (_SCHEDULER, "if sequence in self._roster.paused:", "if sequence is None:"),
        (_ROSTER, "if not self.paused:", "if self.paused or not self.paused:"),
    ),
    _plant(
        "a pause never ends by itself",
        "joining",
        (_SCHEDULER, "        self._roster.end_pauses(now)\n", ""),
    ),
    _plant(
        "a drain leaves the paused where they are",
        "joining",
        (
            _SCHEDULER,
            "        for sequence in list(self._roster.paused):\n"
            "            self._roster.resume(sequence)\n",
            "",
        ),
    ),
    _plant(
        "a tick has prefills and decodes under separate",
        "steering",
        (
            _SCHEDULER,
            "if self._settings.mix is not Mix.SEPARATE:\n            return [group]",
            "if group:\n            return [group]",
        ),
        ("core/mix.py", "case Mix.DECODE_FIRST:", "case Mix.DECODE_FIRST | Mix.SEPARATE:"),
        (
            "core/mix.py",
            "        case Mix.SEPARATE:\n"
            "            return _share_apart(decode_count, wanted, budget)\n",
            "",
        ),
    ),
    _plant(
        "who is not to be displaced is displaced",
        "steering",
        (
            _ROSTER,
            "self._displaces = self.by_class and settings.displaces",
            "self._displaces = self.by_class",
        ),
    ),
    _plant(
        "a policy may answer what is no number",
        "exception",
        (
            "core/ranking.py",
            "            if math.isnan(rank):\n"
            '                raise ValueError("NaN is no rank")\n',
            "",
        ),
    ),
)

PLANTS = (
    *OF_THE_PSEUDO_CODE,
    *OF_MEMORY,
    *OF_ANSWERS,
    *OF_WAITING_AND_FAULTS,
    *OF_FLIGHTS,
    *OF_ROUNDING,
    *OF_JOINING,
    *OF_STEERING,
)
