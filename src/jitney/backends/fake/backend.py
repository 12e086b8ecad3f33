"""The fake backend: no model, but an exact memory and an answer that depends on all of it.

It stores tokens by slot and position, and its next token is a hash of the stored tokens
(`jitney.backends.fake.oracle`), and it obeys every sampling parameter. Or its answers come from a
script (`jitney.backends.fake.script`), and only a constraint may change them. For tests,
demonstrations, and load tests of everything above it. `execute` and `reset` run on the thread that
runs batches; `encode` and `prepare` on any. Raises BackendFailed for every violated precondition.
"""

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from jitney.backends.fake import oracle
from jitney.backends.fake.script import script_of
from jitney.backends.fake.scripted import ScriptedAnswers
from jitney.backends.shared.host_sampler import HostSampler
from jitney.backends.shared.layout import BatchLayout
from jitney.backends.shared.paging import BlockPool
from jitney.backends.shared.prefix_disk import PrefixDisk, with_disk
from jitney.backends.shared.prefix_files import PrefixFiles
from jitney.backends.shared.slots import (
    EntryRows,
    SlotContents,
    SlotMemory,
    is_lone,
    rows_missing,
)
from jitney.core.backend import Fetch, Fetched, Segment, Traits
from jitney.core.batch import Batch, Decodes, Entry, MemoryOperation, Open, Outcome, Sample, Save
from jitney.core.params import Constraint
from jitney.errors import BackendFailed
from jitney.sampling.constraint import ConstraintCompiler
from jitney.sampling.sampler import TEMPERATURE_MIN
from jitney.tokenizers import byte_tokenizer

ROWS_GROUP = 4
"""The simulated kernels compute rows in groups of this size."""

NO_SAMPLE = Sample()

sleep = threading.Event().wait


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSettings:
    """The size of the memory, how often a completion ends, and a simulated cost."""

    slots: int = 16
    kv_tokens: int = 16_384
    block_tokens: int = 1
    model_len_max: int = 4096
    max_num_batched_tokens: int = 2048
    eos_period: int = 64
    """One token in this many is the end token; 0 means none is."""
    tick_s: float = 0.0
    token_s: float = 0.0
    """A batch takes `tick_s`, and `token_s` for each of its tokens."""
    sleeps: bool = False
    """Whether that time really passes."""
    can_save: bool = True
    rounds: bool = False
    """Whether it simulates kernels that round by the shape of a pass. Then a token that is computed
    alone has another result than one in a span, and so has a pass without full groups of rows."""
    state_bytes: int = 0
    """The state of a slot, if it has one as recurrent models do: then it cannot be cut back."""
    script: str = ""
    """The answers, as `script.read_script` returns them; none where it is empty."""


class HashCells:
    """Implements `jitney.backends.shared.slots.Cells`: hashes in place of keys and values.

    Blocks are counted as for a backend with real ones.
    """

    def __init__(self, slots: int, kv_tokens: int, block_tokens: int) -> None:
        self._slots = slots
        self.pool = BlockPool(slots, kv_tokens // block_tokens, block_tokens)
        self.clear()

    def clear(self) -> None:
        """Empty every slot."""
        self.pool.reset()
        self.hashes = [[oracle.HASH_OF_NOTHING] for _ in range(self._slots)]
        """For each slot: element `i` is the hash of its first `i` tokens."""

    def append(self, slot: int, tokens: Sequence[int], rounding: int) -> int:
        """Write tokens after those that the slot holds, and take blocks for them; the new hash."""
        self.pool.grow(slot, len(tokens))
        hashes = self.hashes[slot]
        rolling = hashes[-1]
        for token in tokens:
            rolling = oracle.mix64(rolling, token + rounding)
            hashes.append(rolling)
        return rolling

    def append_one(self, slot: int, token: int) -> int:
        """The same for one token, without rounding."""
        self.pool.grow(slot, 1)
        hashes = self.hashes[slot]
        hashes.append(rolling := oracle.mix64(hashes[-1], token))
        return rolling

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first tokens of one slot to an empty one."""
        self.pool.share(source, target, length)
        self.hashes[target] = self.hashes[source][: length + 1]

    def truncate(self, slot: int, length: int) -> None:
        """Forget positions from `length` on."""
        self.pool.shrink(slot, length)
        del self.hashes[slot][length + 1 :]

    def save(self, slot: int) -> list[int]:
        """A copy of the slot's hashes."""
        return self.hashes[slot].copy()

    def packed(self, saved: list[int]) -> list[bytes]:
        """Saved hashes as bytes."""
        return [struct.pack(f"<{len(saved)}Q", *saved)]

    def unpacked(self, memory: memoryview, token_count: int) -> list[int] | None:
        """The hashes of so many tokens in these bytes, if there are as many."""
        if memory.nbytes != 8 * (token_count + 1):
            return None
        return list(struct.unpack(f"<{token_count + 1}Q", memory))

    def restore(self, slot: int, saved: list[int], length: int) -> None:
        """Write saved hashes into an empty slot."""
        self.pool.grow(slot, length)
        self.hashes[slot] = saved


class FakeBackend:
    """Implements `jitney.core.backend.Backend` on a dictionary and a hash."""

    def __init__(self, settings: FakeSettings) -> None:
        self._settings = settings
        script = script_of(settings.script) if settings.script else None
        self.vocabulary = script.vocabulary if script else byte_tokenizer.byte_vocabulary()
        self._tokenizer = script.tokenizer if script else byte_tokenizer.TOKENIZER
        self._oracle = oracle.TokenOracle(self.vocabulary, settings.eos_period)
        self._scripted = ScriptedAnswers(script) if script else None
        self._compiler = ConstraintCompiler(self.vocabulary, oracle.encode_plain)
        self._cells = HashCells(settings.slots, settings.kv_tokens, settings.block_tokens)
        self._memory = SlotMemory(self._cells, settings.slots, rewinds=settings.state_bytes == 0)
        self._disk: PrefixDisk[list[int]] | None = None
        self._sampler = HostSampler(self._compiler, self._memory)
        self._plain_slots: set[int] = set()
        """Slots whose tokens the oracle chooses directly, without logits."""
        self._layout = BatchLayout(
            self._memory,
            settings.max_num_batched_tokens,
            settings.model_len_max,
            len(self.vocabulary.pieces),
        )
        self.traits = Traits(
            name="fake",
            slots_max=settings.slots,
            kv_tokens=settings.kv_tokens // settings.block_tokens * settings.block_tokens,
            model_len_max=settings.model_len_max,
            block_tokens=settings.block_tokens,
            can_save=settings.can_save,
            kv_bytes_per_token=8,
            state_bytes=settings.state_bytes,
            batch_invariant=True,
            decodes_differ=settings.rounds,
        )

    def use_prefixes(self, files: PrefixFiles) -> None:
        """From now on prefixes are stored here."""
        self._disk = self._memory.disk = PrefixDisk(files, self._cells, self._memory)
        self.traits = with_disk(self.traits)

    def fetch(self, asked: Fetch) -> Fetched:
        """Look for a stored prefix. Any thread."""
        return Fetched(asked.ticket) if self._disk is None else self._disk.fetch(asked)

    @property
    def used_tokens(self) -> int:
        """Tokens of memory taken, in whole blocks; shared blocks count once."""
        return self._cells.pool.used_tokens

    @property
    def tickets(self) -> frozenset[int]:
        """The tickets under which something is saved."""
        return self._memory.tickets

    def tokens_under(self, ticket: int) -> tuple[int, ...]:
        """What is saved under a ticket."""
        return self._memory.tokens_under(ticket)

    def tokens_of(self, slot: int) -> tuple[int, ...]:
        """What a slot holds, in order of position."""
        return tuple(self._memory.contents(slot).tokens)

    def execute(self, batch: Batch) -> Outcome:
        """Carry out a batch. After BackendFailed the caller must reset the memory."""
        settings = self._settings
        if batch.operations:
            self._operate(batch.operations)
        token_count = self._layout.check_batch(batch)
        tokens, entries = [], batch.spans
        if not settings.rounds and self._plain_slots.issuperset(batch.decodes.slots):
            tokens = self._decode(batch.decodes)
        else:
            entries = batch.entries
        seconds = settings.tick_s + settings.token_s * token_count
        samples = self._run(entries, token_count) if entries else []
        delay_s = 0.0 if self._scripted is None else self._scripted.taken_delay_s()
        if slept_s := delay_s + (seconds if settings.sleeps else 0.0):
            sleep(slept_s)
        seconds += delay_s
        if entries:
            return Outcome.of(batch.number, [*map(Sample, tokens), *samples], seconds)
        return Outcome(batch.number, tuple(tokens), seconds)

    def reset(self) -> None:
        """Empty every slot and every ticket."""
        self._memory.reset()

    def check(self) -> None:
        """Does nothing: this backend never crashes. Tests wrap it to simulate a crash."""

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of texts. The name of a control token becomes that token only when `special`."""
        return [
            token
            for text, special in texts
            for token in self._tokenizer.encode(text, special=special)
        ]

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint ahead of use, in bounded time. Raises InvalidRequest."""
        self._compiler.prepare(constraint)

    def close(self) -> None:
        """Release everything; idempotent."""
        self._compiler.close()
        self._memory.reset()

    def _operate(self, operations: Sequence[MemoryOperation]) -> None:
        self._sampler.operate(operations)
        for operation in operations:
            if isinstance(operation, Save) and not self._settings.can_save:
                raise BackendFailed("This backend was set up not to save slots.")
            if isinstance(operation, Open):
                self._plain_slots.discard(operation.slot)
                if self._scripted is not None:
                    self._scripted.forget(operation.slot)
                elif oracle.is_plain(operation.sampling):
                    self._plain_slots.add(operation.slot)

    def _decode(self, decodes: Decodes) -> list[int]:
        """Store and choose the tokens of slots that need no logits: `_run` for columns."""
        chosen = []
        contents_of, checked = self._memory.contents, self._layout.checked_decode
        append_one, choose = self._cells.append_one, self._chosen
        for slot, start, token in zip(decodes.slots, decodes.starts, decodes.tokens, strict=True):
            contents = contents_of(slot)
            token = checked(slot, start, token, contents)
            contents.tokens.append(token)
            chosen.append(choose(contents, append_one(slot, token)))
        return chosen

    def _run(self, entries: tuple[Entry, ...], rows: int) -> list[Sample]:
        """Store every span and choose tokens. Slots are independent, so one loop does both."""
        samples = [NO_SAMPLE] * len(entries)
        by_logits: list[EntryRows] = []
        rounds, layout = self._settings.rounds, self._layout
        left_over = (rows + rows_missing(rows, ROWS_GROUP)) % ROWS_GROUP
        for index, entry in enumerate(entries):
            slot = entry.slot
            contents = self._memory.contents(slot)
            is_plain_slot = slot in self._plain_slots
            if is_plain_slot:
                tokens = layout.checked_tokens(entry, contents)
            else:
                first = by_logits[-1].rows.stop if by_logits else 0
                laid_out = layout.lay_out_entry(index, entry, contents, first)
                by_logits.append(laid_out)
                tokens = laid_out.tokens
            rounding = self._rounding(entry, contents, left_over) if rounds else 0
            rolling = self._cells.append(slot, tokens, rounding)
            contents.tokens += tokens
            if is_plain_slot:
                contents.token_last = None
                if entry.wants_token:
                    samples[index] = Sample(self._chosen(contents, rolling))
        if by_logits:
            chosen = self._sampler.sample(by_logits, self._logits(by_logits))
            for each, sample in zip(by_logits, chosen, strict=True):
                checked = self._scripted.checked(each, sample) if self._scripted else sample
                samples[each.index] = checked
        return samples

    def _chosen(self, contents: SlotContents, rolling: int) -> int:
        """The oracle's token for a slot that needs no logits; `rolling` is the slot's hash."""
        sampling = contents.sampling
        assert sampling is not None, "Checked before it was stored"
        if sampling.temperature >= TEMPERATURE_MIN:
            rolling = oracle.seeded(rolling, sampling.seed, len(contents.tokens))
        contents.token_last = token = self._oracle.choose(rolling, contents.tokens[-1])
        return token

    def _rounding(self, entry: Entry, contents: SlotContents, left_over: int) -> int:
        """What the simulated kernels add to each token of a span: 0 for a span in a full pass."""
        # A single last token of a prompt is computed together with the token before it.
        is_lone_prompt = is_lone(entry, contents.prompt_count)
        is_alone = entry.length == 1 and entry.start > 0 and not is_lone_prompt
        return left_over * oracle.ROUNDED_ROW + is_alone * oracle.ROUNDED_ALONE

    def _logits(self, laid_out: list[EntryRows]) -> list[oracle.Logits]:
        """The rows of logits for these entries."""
        rows: list[oracle.Logits] = []
        for each in laid_out:
            hashes, tokens = self._cells.hashes[each.entry.slot], each.contents.tokens
            end = each.entry.end
            for length in range(end - len(each.rows) + 1, end + 1):
                rows.append(self._oracle.logits(hashes[length], tokens[length - 1]))
            if self._scripted is not None and each.entry.wants_token:
                self._scripted.prefer(each, rows[-1])
        return rows
