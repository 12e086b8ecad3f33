"""What callers do in a world: who arrives when with what, who gives up, who reads slowly.

Drawn whole before the run, so that nothing the engine does changes what is asked of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from jitney.core.limits import STOP_STRING_CHARACTERS_MAX, STOP_STRINGS_MAX
from jitney.core.params import SamplingParams, StructuredOutputsParams
from jitney.core.request import Priority, Request, RequestId
from tests.simulation.alone import CONTROL, PIECES, sample_alone
from tests.simulation.world import TENANTS, World

POISON = len(PIECES) - 1
"""A control token that brings the backend down when it is computed as part of a prompt."""

CURSE = -1.5
"""A bias against that token, of which there is no such other: it brings the backend down when the
slot of its request is opened."""

UNSTORED_CHANCE = 0.1
"""That a caller wants that nothing is stored, where there is a disk."""

FAMILIES = 3
_PLAIN = [token for token in range(len(PIECES)) if token not in CONTROL]
_CLOSING = PIECES.index(b" stop")
_INSIDE = f"<[^{_CLOSING},{PIECES.index(b'<|end|>')}]>"
_LEAD = f"start: thought <[{_CLOSING}]> @answer\nthought: {_INSIDE}{{0,6}}\n"
"""A thought of up to six tokens before a constraint, as a model that reasons has it."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request handed in; `read_chance` is that of its mailbox being read after a turn."""

    at: float
    request: Request
    streams: bool
    read_chance: float


@dataclass(frozen=True, slots=True)
class CancelAt:
    """A caller gives up; `in_flight` when the cancel comes in while a batch is under way."""

    at: float
    request_id: RequestId
    in_flight: bool


@dataclass(frozen=True, slots=True)
class SteerAt:
    """A caller pauses or resumes its request, or puts it into another class."""

    at: float
    kind: str
    request_id: RequestId
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything that callers do, each list in order of time."""

    arrivals: tuple[Arrival, ...]
    cancels: tuple[CancelAt, ...]
    steers: tuple[SteerAt, ...]


def draw_workload(world: World) -> Workload:
    """The workload of a world."""
    random = Random(f"workload {world.seed}")
    habits = world.habits
    families = [
        tuple(random.choices(_PLAIN, k=world.settings.model_len_max)) for _ in range(FAMILIES)
    ]
    arrivals: list[Arrival] = []
    cancels: list[CancelAt] = []
    turns = Random(f"turns {world.seed}")
    unstored = Random(f"unstored {world.seed}")
    kinds = Random(f"kinds {world.seed}")
    cursed = Random(f"curse {world.seed}").randrange(habits.request_count)
    at = 0.0
    for number in range(habits.request_count):
        if number % habits.bursts == 0:
            at = random.uniform(0.0, habits.span_s)
        request = _request(world, random, families, RequestId(f"r{number}"))
        if arrivals and turns.random() < habits.turns:
            request = _next_turn(world, turns, turns.choice(arrivals).request, request)
        if number < habits.poison_count:
            request = _poisoned(request, random)
        if kinds.random() < habits.background:
            request = replace(request, is_background=True, share=None)
        if world.disk is not None and unstored.random() < UNSTORED_CHANCE:
            request = replace(request, is_stored=False)
        if habits.scored:
            request = replace(request, params=replace(request.params, prompt_logprobs=0))
        if habits.cursed and number == cursed:
            request = _cursed(request)
        slow = random.random() < habits.slow_reader
        read_chance = random.choice((0.0, 0.05, 0.3)) if slow else 1.0
        arrivals.append(Arrival(at, request, random.random() < 0.9, read_chance))
        if random.random() < habits.cancel:
            cancels += _cancels(world, random, at, request.id)
    arrivals.sort(key=lambda arrival: arrival.at)
    cancels.sort(key=lambda cancel: cancel.at)
    steers = _steers(world, Random(f"steers {world.seed}"), arrivals)
    return Workload(tuple(arrivals), tuple(cancels), tuple(steers))


def _steers(world: World, random: Random, arrivals: list[Arrival]) -> list[SteerAt]:
    """Pauses that are resumed or forgotten, some of them twice or too late; and other classes."""
    steers: list[SteerAt] = []
    tick_s = world.fake.tick_s
    for arrival in arrivals:
        request_id = arrival.request.id
        if random.random() < world.habits.pause:
            at = arrival.at + random.expovariate(1.0) * tick_s * random.choice((0, 1, 10, 50))
            steers.append(SteerAt(at, "pause", request_id))
            if random.random() < 0.8:
                later = at + random.expovariate(1.0) * tick_s * random.choice((0, 1, 10, 100))
                steers.append(SteerAt(later, "resume", request_id))
            if random.random() < 0.2:
                steers.append(SteerAt(at + tick_s, "pause", request_id))
        if random.random() < world.habits.reprioritise:
            at = arrival.at + random.expovariate(1.0) * tick_s * random.choice((0, 1, 10))
            priority = random.choice(tuple(Priority))
            steers.append(SteerAt(at, "reprioritise", request_id, priority))
    return sorted(steers, key=lambda steer: steer.at)


def _cancels(world: World, random: Random, at: float, request_id: RequestId) -> list[CancelAt]:
    delay_s = random.expovariate(1.0) * world.fake.tick_s * random.choice((1, 10, 50))
    first = CancelAt(at + delay_s, request_id, random.random() < 0.5)
    if random.random() < 0.2:
        return [first, replace(first, at=first.at + random.choice((0.0, delay_s)))]
    if random.random() < 0.1:
        return [replace(first, request_id=RequestId("nobody"))]
    return [first]


def _request(
    world: World, random: Random, families: list[tuple[int, ...]], request_id: RequestId
) -> Request:
    habits, model_len = world.habits, world.settings.model_len_max
    tail = tuple(random.choices(_PLAIN, k=random.randint(1, habits.prompt_tail_max)))
    prompt = tail
    if random.random() < habits.family:
        length = random.choice((model_len // 4, model_len // 2, random.randrange(model_len)))
        prompt = random.choice(families)[:length] + tail
    # Within the context, mostly with room for a completion.
    prompt = prompt[: model_len - random.choice((1, 8, model_len // 2, model_len // 2))]
    if random.random() < habits.invalid:
        prompt = random.choice(((), (prompt * model_len)[:model_len], prompt * (model_len + 1)))
    has_deadline = random.random() < habits.deadline
    limit_s = random.choice((0.0, 0.1, 1.0, 5.0)) if has_deadline else None
    is_total = random.random() < 0.5
    request = Request(
        id=request_id,
        prompt=prompt,
        params=_params(world, random),
        seed=random.randrange(-(2**63), 2**63),
        priority=random.choice(tuple(Priority)),
        tenant=f"tenant {random.randrange(TENANTS)}",
        scope=f"scope {random.randrange(habits.scopes)}",
        queue_timeout_s=None if is_total else limit_s,
        request_timeout_s=limit_s if is_total else None,
    )
    request = replace(request, share=world.shares[int(request.tenant[-1])])
    if 0 < len(prompt) < model_len and random.random() < habits.stop:
        stop = _stops(world, random, request)
        others = Random(f"stops {world.seed} {request_id}")
        if others.random() < habits.many_stops:
            stop = _many_stops(world, others, request, stop)
        return replace(request, params=replace(request.params, stop=stop))
    return request


def _next_turn(world: World, random: Random, before: Request, request: Request) -> Request:
    """The same request behind an earlier one and its answer, if that fits: a conversation."""
    if not before.prompt or not request.prompt:
        return request
    answer = sample_alone(before, before.seed, world.fake, before.params.max_tokens or 1)
    prompt = before.prompt + answer + request.prompt[: random.choice((1, 4, 16))]
    if len(prompt) >= world.settings.model_len_max:
        return request
    return replace(request, prompt=prompt, scope=before.scope)


def _params(world: World, random: Random) -> SamplingParams:
    habits = world.habits
    drawn = random.random() < habits.drawn
    params = SamplingParams(
        n=random.randint(2, 4) if random.random() < habits.several else 1,
        temperature=random.choice((0.5, 1.0)) if drawn else 0.0,
        max_tokens=random.choice((1, random.randint(1, habits.tokens_max), habits.tokens_max)),
        ignore_eos=random.random() < 0.2,
        include_stop_str_in_output=random.random() < 0.2,
        stop_token_ids=random.choices(_PLAIN, k=12) if random.random() < 0.1 else None,
    )
    if random.random() < habits.constrained:
        constraint = random.choice(
            (
                StructuredOutputsParams(choice=["yes", "no", "yes please"]),
                StructuredOutputsParams(regex="[a-c]{2,5}"),
            )
        )
        if params.ignore_eos:
            constraint = replace(constraint, lead=_LEAD)
        return replace(params, structured_outputs=constraint, ignore_eos=False)
    if random.random() < habits.fancy:
        return _fancy(params, random)
    return params


def _fancy(params: SamplingParams, random: Random) -> SamplingParams:
    match random.randrange(5):
        case 0:
            return replace(params, logprobs=random.choice((0, 2)), top_k=random.choice((0, 5)))
        case 1:
            return replace(params, prompt_logprobs=random.choice((0, 2)))
        case 2:
            return replace(params, frequency_penalty=1.5, repetition_penalty=1.3)
        case 3:
            return replace(params, logit_bias={65: 4.0, 66: -4.0}, top_p=0.9)
        case _:
            return replace(params, min_tokens=min(3, params.max_tokens or 3), min_p=0.05)


def _stops(world: World, random: Random, request: Request) -> list[str]:
    """Strings of which some really occur, across the edge of tokens where there is one."""
    sampled = sample_alone(request, request.seed, world.fake, world.habits.tokens_max)
    texts = [PIECES[token].decode("utf-8", errors="replace") for token in sampled]
    text = b"".join(PIECES[token] for token in sampled).decode("utf-8", errors="replace")
    stops = ["never said"]
    if len(texts) > 1:
        edge = len("".join(texts[: random.randrange(1, len(texts))]))
        found = text[max(0, edge - random.randint(1, 4)) : edge + random.randint(1, 4)]
        if found and random.random() < 0.7:
            stops.append(found)
        if len(found) > 1:
            stops.append(found[:-1] + "~")
    return stops


def _many_stops(world: World, random: Random, request: Request, stops: list[str]) -> list[str]:
    """As many more as there may be: beginnings of what is said that go on otherwise, one inside
    the other, and long runs of one character."""
    sampled = sample_alone(request, request.seed, world.fake, world.habits.tokens_max)
    text = b"".join(PIECES[token] for token in sampled).decode("utf-8", errors="replace")
    many = list(stops)
    while len(many) < STOP_STRINGS_MAX:
        start = random.randrange(len(text)) if text else 0
        said = text[start : start + random.choice((1, 2, 8, 40))]
        run = (said[:1] or "a") * random.randrange(1, STOP_STRING_CHARACTERS_MAX)
        many.append(random.choice((said, said, run))[: STOP_STRING_CHARACTERS_MAX - 1] + "~")
    if random.random() < 0.5 and len(stops) > 1:
        # Inside one that begins earlier, and goes on otherwise.
        at = text.find(stops[1])
        many[-1] = text[max(0, at - 3) : at + len(stops[1])] + "~"
    random.shuffle(many)
    return many


def has_curse(biases: Iterable[tuple[int, float]]) -> bool:
    """Whether the backend dies when a slot is opened with these."""
    return (POISON, CURSE) in biases


def is_poisoned(request: Request) -> bool:
    """Whether a request brings the backend down, by a token of its prompt or when it is opened."""
    return POISON in request.prompt or has_curse((request.params.logit_bias or {}).items())


def _cursed(request: Request) -> Request:
    bias = {**(request.params.logit_bias or {}), POISON: CURSE}
    return replace(request, params=replace(request.params, logit_bias=bias))


def _poisoned(request: Request, random: Random) -> Request:
    if not request.prompt:
        return request
    at = random.randrange(len(request.prompt))
    prompt = (*request.prompt[:at], POISON, *request.prompt[at + 1 :])
    return replace(request, prompt=prompt)
