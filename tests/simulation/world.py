"""A world drawn from a seed: every setting and every probability of one run.

Swarm testing: a world does not have a bit of everything, it has its own mixture. Some have no
cancels and some hardly anything else; some have memory for everybody and some for one at a time.
"""

from dataclasses import dataclass, replace
from random import Random

from jitney.backends.fake.backend import FakeSettings
from jitney.core.request import Share
from jitney.core.scheduler_settings import GroupAnswers, Mix, Policy, SchedulerSettings, Strategy
from tests.simulation.policies import KINDS, HostilePolicy

LONG_CHANCE = 0.05
"""That the prompts of a world are long; such a one takes ten times as long as another."""
ROUNDS_CHANCE = 0.5
"""That the fake backend pretends kernels that round by the shape of a pass."""
RECURRENT_CHANCE = 0.2
"""That slots cannot be cut back, as those of a recurrent model."""
CURSED_CHANCE = 0.1
"""That one request of a world brings the backend down when its slot is opened."""
SCORED_CHANCE = 0.03
DISK_EVERY, DISK_SEEDS = 10, (1, 9)
"""Of every so many seeds, these have a disk for prefixes. The others are what they were before."""
BACKGROUND_EVERY = 4
"""Every so many seeds, a world has background requests. The others are what they were before."""
TENANTS = 3
MIXES = tuple(mix for mix in Mix if mix is not Mix.SEPARATE)
"""The mixes that are drawn with everything else; the other one is drawn by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """Probabilities per batch, and per turn for the clock; all zero when faults are over."""

    fail: float = 0.0
    crash: float = 0.0
    entry: float = 0.0
    count: float = 0.0
    stall: float = 0.0
    clock_jump: float = 0.0
    reset: float = 0.0
    """That a reset fails, too."""

    @property
    def any_batch(self) -> bool:
        """Whether a batch may be lost by chance."""
        return bool(self.fail or self.crash or self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskHabits:
    """What the disk for prefixes is like."""

    limit: int
    """The bytes of all files."""
    slow: float
    """That an answer comes late, or never."""
    damage: float
    """That what is read is damaged, or is not there."""
    full: float
    """That writing fails, or somebody else writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What callers are like; probabilities are per request unless said otherwise."""

    request_count: int
    span_s: float
    """Arrivals fall into this time."""
    bursts: int
    """So many of them arrive together."""
    prompt_tail_max: int
    tokens_max: int
    family: float
    """That a prompt begins with one of three common beginnings."""
    scopes: int
    several: float
    """More than one completion."""
    drawn: float
    """Temperature above zero."""
    stop: float
    many_stops: float
    """That one with stop strings has as many and as long ones as there may be."""
    fancy: float
    """Logprobs, penalties, bias, truncation of the distribution."""
    constrained: float
    cancel: float
    slow_reader: float
    deadline: float
    invalid: float
    turns: float
    """That it goes on from an earlier request and its answer."""
    poison_count: int
    cursed: bool
    """Whether one of all requests brings the backend down when its slot is opened."""
    scored: bool
    """Whether all want logprobs of their prompts."""
    pause: float
    """That its caller pauses it, and perhaps resumes it."""
    reprioritise: float
    background: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All that one run depends on."""

    seed: int
    queues: bool
    """The backend takes a second batch while one is under way."""
    hastes: bool
    """Batches are planned ahead whether or not it takes something from somebody."""
    drains: bool
    gives_up: bool
    """Resets fail until the engine stops."""
    fake: FakeSettings
    settings: SchedulerSettings
    habits: Habits
    faults: FaultRates
    shares: tuple[Share | None, ...]
    """What each tenant may hold; none of them has a share where there are no keys."""
    disk: DiskHabits | None = None
    """None where there is none for prefixes."""


def draw_world(seed: int) -> World:
    """The world of a seed."""
    random = Random(f"world {seed}")
    queues = random.random() < 0.5
    fake, settings = _sizes(random)
    faults = _faults(random)
    gives_up = faults.crash > 0 and random.random() < 0.2
    habits = _habits(random, fake.model_len_max, Random(f"many stops {seed}"))
    habits = replace(habits, turns=Random(f"turns {seed}").choice((0.0, 0.0, 0.3, 0.8)))
    long = Random(f"long prompts {seed}")
    if long.random() < LONG_CHANCE:
        fake, settings, habits = _lengthened(long, fake, settings, habits)
    steering = Random(f"steering {seed}")
    settings = _steered(steering, settings, seed)
    habits = replace(
        habits,
        pause=steering.choice((0.0, 0.0, 0.2, 0.6)),
        reprioritise=steering.choice((0.0, 0.0, 0.3)),
    )
    fake = replace(fake, rounds=Random(f"rounds {seed}").random() < ROUNDS_CHANCE)
    if Random(f"rewinds {seed}").random() < RECURRENT_CHANCE:
        # Their kernels round by the shape of a pass, and no texts are promised to be equal.
        fake = replace(fake, state_bytes=64, rounds=False)
        states = Random(f"kept states {seed}")
        fake = replace(fake, slots=fake.slots + states.choice((0, 2, 8)))
        # Copies on the way are rare in prompts that are as short as these, and found by few.
        every, chunk = states.choice((16, 32, 64, 1024)), states.choice((4, settings.prefill_chunk))
        settings = replace(settings, kept_state_every=every, prefill_chunk=chunk)
        habits = replace(habits, family=states.choice((habits.family, 1.0)))
        faults = replace(faults, entry=states.choice((faults.entry, 0.05)))
    habits = replace(
        habits,
        cursed=Random(f"cursed {seed}").random() < CURSED_CHANCE,
        scored=Random(f"scored {seed}").random() < SCORED_CHANCE,
    )
    if seed % BACKGROUND_EVERY == BACKGROUND_EVERY - 1:
        chance = Random(f"background {seed}").choice((0.2, 0.5, 0.9))
        habits = replace(habits, background=chance)
    disk = None
    if seed % DISK_EVERY in DISK_SEEDS:
        disk, fake, settings, habits = _disk(Random(f"disk {seed}"), fake, settings, habits)
    return World(
        seed=seed,
        queues=queues,
        hastes=queues and Random(f"haste {seed}").random() < 0.3,
        # Whoever waits until a group is full waits for ever, unless the engine drains.
        drains=random.random() < 0.3 or settings.wait_s is None,
        gives_up=gives_up,
        fake=fake,
        settings=settings,
        habits=habits,
        faults=faults,
        shares=_shares(Random(f"shares {seed}"), settings),
        disk=disk,
    )


def _disk(
    random: Random, fake: FakeSettings, settings: SchedulerSettings, habits: Habits
) -> tuple[DiskHabits, FakeSettings, SchedulerSettings, Habits]:
    """The same world with a disk, and prompts that are worth it."""
    disk = DiskHabits(
        limit=random.choice((5000, 20_000, 10**9, 10**9)),
        slow=random.choice((0.0, 0.1, 0.5)),
        damage=random.choice((0.0, 0.2, 0.5)),
        full=random.choice((0.0, 0.0, 0.3)),
    )
    least = random.choice((8, 16, 40))
    settings = replace(settings, enable_prefix_caching=True, stored_min=least)
    tail_max = random.choice((habits.prompt_tail_max, 24, fake.model_len_max // 2))
    turns = random.choice((habits.turns, 0.8))
    habits = replace(habits, family=1.0, prompt_tail_max=tail_max, turns=turns)
    return disk, replace(fake, can_save=True, state_bytes=0), settings, habits


def _lengthened(
    random: Random, fake: FakeSettings, settings: SchedulerSettings, habits: Habits
) -> tuple[FakeSettings, SchedulerSettings, Habits]:
    """The same world with long prompts that share most of their length: many wait for one."""
    model_len = 2048
    kv_tokens = model_len * random.choice((2, 8, 20)) // fake.block_tokens * fake.block_tokens
    chunk = random.choice((16, 64))
    batch_tokens = settings.max_num_seqs + 4 * chunk
    return (
        replace(
            fake, model_len_max=model_len, kv_tokens=kv_tokens, max_num_batched_tokens=batch_tokens
        ),
        replace(
            settings,
            model_len_max=model_len,
            max_num_batched_tokens=batch_tokens,
            prefill_chunk=chunk,
            enable_prefix_caching=True,
            strategy=Strategy.CONTINUOUS,
            max_num_queued_reqs=1024,
            max_num_queued_tokens=1_000_000,
        ),
        replace(
            habits,
            request_count=24,
            bursts=24,
            family=1.0,
            scopes=1,
            prompt_tail_max=8,
            tokens_max=8,
            deadline=0.0,
            invalid=0.0,
            poison_count=0,
        ),
    )


def _shares(random: Random, settings: SchedulerSettings) -> tuple[Share | None, ...]:
    if random.random() < 0.5:
        return (None,) * TENANTS
    return tuple(
        Share(
            waiting_max=_part(random, min(settings.max_num_queued_reqs, 16)),
            waiting_tokens_max=_part(random, min(settings.max_num_queued_tokens, 4000)),
            running_max=_part(random, settings.max_num_seqs),
        )
        for _ in range(TENANTS)
    )


def _part(random: Random, whole: int) -> int:
    return max(1, int(random.choice((0.25, 0.5, 0.75, 1.0)) * whole))


def _sizes(random: Random) -> tuple[FakeSettings, SchedulerSettings]:
    block = random.choice((1, 4, 16, 32))
    model_len = random.choice((48, 96, 160, 256))
    least = -(-model_len // block) * block
    kv_tokens = least + random.choice((0, block, model_len // 4, model_len, model_len * 20))
    max_num_seqs = random.choice((1, 2, 4, 4, 6, 8, 16))
    slots = max_num_seqs + random.choice((0, 0, 1, 4, 16))
    batch_tokens = max_num_seqs + random.choice((0, 1, 7, 32, 64, 256))
    fake = FakeSettings(
        slots=slots,
        kv_tokens=kv_tokens + random.randrange(block),
        block_tokens=block,
        model_len_max=model_len,
        max_num_batched_tokens=batch_tokens,
        eos_period=random.choice((0, 8, 20, 64)),
        tick_s=random.choice((0.001, 0.01, 0.05)),
        token_s=random.choice((0.0, 0.0001, 0.002)),
        can_save=random.random() < 0.7,
    )
    return fake, _settings(random, model_len, max_num_seqs, batch_tokens)


def _settings(
    random: Random, model_len: int, max_num_seqs: int, batch_tokens: int
) -> SchedulerSettings:
    strategy = Strategy.CONTINUOUS
    if random.random() < 0.35:
        strategy = random.choice((Strategy.STATIC, Strategy.DYNAMIC, Strategy.ADAPTIVE))
    chunk = random.choice((1, 4, 16, 64, 512))
    is_cached = random.random() < 0.8
    # Of no use here: without it, the worlds of all seeds would be others.
    random.randrange(4)
    return SchedulerSettings(
        model_len_max=model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=batch_tokens,
        prefill_chunk=chunk,
        enable_prefix_caching=is_cached,
        watermark=random.choice((0.0, 0.0, 0.02, 0.2)),
        saved_limit=random.choice((0, 8 * model_len, 2**30, 2**30)),
        strategy=strategy,
        policy=random.choice(tuple(Policy)),
        mix=random.choice(MIXES),
        wait_s=random.choice((0.0, 0.05, 0.5)),
        stall_s_target=random.choice((0.002, 0.02, 0.1)),
        overtake_s=random.choice((0.02, 0.2, 2.0, 30.0)),
        max_num_queued_reqs=random.choice((2, 16, 1024, 1024)),
        max_num_queued_tokens=random.choice((2 * model_len, 2000, 1_000_000)),
        queue_timeout_s=random.choice((None, None, None, 2.0)),
        request_timeout_s=random.choice((None, None, None, 20.0)),
    )


def _steered(random: Random, settings: SchedulerSettings, seed: int) -> SchedulerSettings:
    """The same settings with a window or another group, ticks of one kind, a policy of its own."""
    size = settings.max_num_seqs
    is_grouped = settings.strategy is not Strategy.CONTINUOUS
    wait_s: float | None = settings.wait_s if is_grouped else 0.0
    window_size = None
    if not is_grouped and random.random() < 0.3:
        wait_s = random.choice((0.01, 0.05, 0.5))
        window_size = random.choice((None, min(2, size), size))
    if settings.strategy is Strategy.STATIC and random.random() < 0.4:
        wait_s = None
    is_separate = random.random() < 0.2
    least = random.choice((1, 1, min(2, size), size))
    settings = replace(
        settings,
        wait_s=wait_s,
        min_batch_size=window_size or least,
        group_answers=random.choice(tuple(GroupAnswers)),
        mix=Mix.SEPARATE if is_separate else settings.mix,
        prefill_batch_size=random.choice((None, 1, 2)) if is_separate else None,
        decode_batch_size=random.choice((None, 1, 3)) if is_separate else None,
        enable_preemption=random.random() < 0.6,
    )
    if random.random() < 0.2:
        return replace(settings, policy=HostilePolicy(random.choice(KINDS), seed))
    return settings


def _habits(random: Random, model_len: int, of_stops: Random) -> Habits:
    def some(chance: float, *values: float) -> float:
        return random.choice(values) if random.random() < chance else 0.0

    return Habits(
        request_count=random.choice((8, 24, 48, 96)),
        span_s=random.choice((0.0, 0.3, 2.0, 8.0)),
        bursts=random.choice((1, 1, 4, 12)),
        prompt_tail_max=random.choice((4, 8, 24, model_len)),
        tokens_max=random.choice((4, 16, 64)),
        family=some(0.8, 0.3, 0.7, 1.0),
        scopes=random.choice((1, 1, 2, 3)),
        several=some(0.5, 0.1, 0.4),
        drawn=some(0.7, 0.3, 1.0),
        stop=some(0.6, 0.2, 0.6),
        many_stops=of_stops.choice((0.0, 0.0, 0.5, 1.0)),
        fancy=some(0.4, 0.1, 0.3),
        constrained=some(0.15, 0.1),
        cancel=some(0.6, 0.1, 0.3, 0.8),
        slow_reader=some(0.6, 0.3, 1.0),
        deadline=some(0.4, 0.1, 0.4),
        invalid=some(0.3, 0.05, 0.2),
        turns=0.0,
        poison_count=random.choice((0, 0, 0, 1, 1, 2, 3)),
        cursed=False,
        scored=False,
        pause=0.0,
        reprioritise=0.0,
    )


def _faults(random: Random) -> FaultRates:
    if random.random() < 0.35:
        return FaultRates()

    def some(chance: float, *values: float) -> float:
        return random.choice(values) if random.random() < chance else 0.0

    return FaultRates(
        fail=some(0.3, 0.01, 0.05, 0.15),
        crash=some(0.4, 0.01, 0.05, 0.15),
        entry=some(0.3, 0.01, 0.05),
        count=some(0.2, 0.01, 0.05),
        stall=some(0.3, 0.02, 0.1),
        clock_jump=some(0.2, 0.01),
        reset=some(0.4, 0.3, 0.6),
    )
