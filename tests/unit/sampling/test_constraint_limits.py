"""Constraints that would take all time and memory: refused, and nothing stays behind."""

import json
import string
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from jitney.core import limits
from jitney.core.backend import Vocabulary
from jitney.core.params import Constraint, ConstraintKind
from jitney.errors import InvalidRequest, QueueFull
from jitney.sampling import constraint, grammar
from jitney.sampling.constraint import ConstraintCompiler, FollowTime, Matcher
from jitney.sandbox.sandbox import Busy, Gone, TooLong, TooMuchMemory
from tests.e2e.server.processes import children, memory_bytes, wait_until_gone

END = 256
VOCABULARY = Vocabulary(
    pieces=(*(bytes([byte]) for byte in range(256)), b"<e>"),
    control=frozenset({END}),
    eos_tokens=(END,),
)
GROWTH_BYTES_MAX = 32 * 2**20


def regex(text: str) -> Constraint:
    return Constraint(ConstraintKind.REGEX, text)


def explosion(first: str) -> Constraint:
    """A schema of 3 KB that compiles for ever, and takes 60 MB more each second."""
    letters = (first + string.ascii_letters.replace(first, "") + string.digits)[:60]
    patterns = [{"type": "string", "pattern": f"^.*k{each * 7}.*$"} for each in letters]
    return Constraint(ConstraintKind.JSON, json.dumps({"allOf": patterns}))


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConstraintCompiler]:
    """One that is out of patience sooner with explosions, and later with all else."""
    for name in ("CONSTRAINT_COMPILE_S_MAX", "CONSTRAINTS_LOST_S_MAX"):
        monkeypatch.setattr(limits, name, 60.0)
    made = ConstraintCompiler(VOCABULARY, lambda text: list(text.encode()))
    run = made.sandbox.run

    def run_shorter(task: list[str]) -> object:
        return run(task, 0.5 if "allOf" in task[1] else None)

    monkeypatch.setattr(made.sandbox, "run", run_shorter)
    yield made
    made.close()


def follow(matcher: Matcher, tokens: list[int]) -> None:
    for count in range(len(tokens)):
        matcher.advance_to(tokens[:count])
        matcher.mask()


def processes(compiler: ConstraintCompiler) -> list[int]:
    """The process with limits, and what it forked."""
    pid = compiler.sandbox.pid
    assert pid is not None
    return [pid, *children(pid)]


def test_nothing_is_left_at_work_behind_a_refusal(compiler: ConstraintCompiler) -> None:
    """Guards everybody: native code cannot be interrupted, and went on for ever in a thread."""
    compiler.prepare(regex("[0-9]+"))
    threads, parent = set(threading.enumerate()), compiler.sandbox.pid
    before = memory_bytes(processes(compiler)[0])
    for first in "abc":
        with pytest.raises(InvalidRequest, match="longer than 60 s to compile") as caught:
            compiler.prepare(explosion(first))
        assert caught.value.parameter == "structured_outputs"
        assert set(threading.enumerate()) == threads
    compiler.prepare(regex("[0-9]+x"))
    assert compiler.sandbox.start_count == 1
    assert compiler.sandbox.pid == parent
    assert len(processes(compiler)) <= 2
    assert memory_bytes(processes(compiler)[0]) - before < GROWTH_BYTES_MAX


def test_bad_ones_at_once_do_not_refuse_a_good_one(compiler: ConstraintCompiler) -> None:
    """Guards those who come after: two held both places, and every next one was told to wait."""
    with ThreadPoolExecutor(3) as pool:
        bad = [pool.submit(compiler.prepare, explosion(first)) for first in "abc"]
        compiler.prepare(regex("good"))
    assert all(isinstance(each.exception(), InvalidRequest) for each in bad)
    assert compiler.sandbox.start_count == 1


def test_what_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the machine's memory while there is time left."""
    monkeypatch.setattr(limits, "CONSTRAINT_COMPILE_S_MAX", 60.0)
    monkeypatch.setattr(limits, "CONSTRAINT_COMPILE_BYTES_MAX", 2**23)
    monkeypatch.setattr(constraint, "_HEAP_BYTES", 0)
    compiler = ConstraintCompiler(VOCABULARY, lambda text: list(text.encode()))
    try:
        with pytest.raises(InvalidRequest, match=r"memory to compile|compiler failed"):
            compiler.prepare(explosion("a"))
        compiler.prepare(regex("good"))
        assert compiler.sandbox.start_count == 1
    finally:
        compiler.close()


def test_a_constraint_that_was_prepared_is_compiled_here_alone(
    compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the batch: the thread that runs it waits for no process, and for nobody's turn."""
    compiler.prepare(regex("kept"))
    compiler.close()
    monkeypatch.setattr(constraint, "_CACHED_MAX", 0)
    assert compiler.compile(regex("kept")).mask().sum() == 1
    assert compiler.compile(regex("prepared in the process before")).mask().sum() == 1


@pytest.mark.parametrize("error", [Busy("others"), Gone("no memory")], ids=str)
def test_want_of_a_process_is_nobodys_mistake(
    compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Guards the caller of a good constraint: to be tried again, not to be mended."""

    def run(task: object) -> None:
        raise error

    monkeypatch.setattr(compiler.sandbox, "run", run)
    with pytest.raises(QueueFull, match=f"cannot be compiled now .{error}."):
        compiler.prepare(regex("good"))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (TooLong("the set-up took longer than 15 s"), "it took longer than 60 s to compile;"),
        (TooMuchMemory("it took more than 402 MB"), "it took more than 256 MiB of memory to comp"),
    ],
    ids=["time", "memory"],
)
def test_a_refusal_names_the_limit_of_a_constraint(
    compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str
) -> None:
    """Guards the sentence: the process has limits of its own, which no caller can change."""

    def run(task: object) -> None:
        raise error

    monkeypatch.setattr(compiler.sandbox, "run", run)
    with pytest.raises(InvalidRequest) as refused:
        compiler.prepare(regex("any"))
    assert sentence in str(refused.value)


def test_closing_leaves_no_process(compiler: ConstraintCompiler) -> None:
    """Guards against processes of backends that are gone."""
    compiler.prepare(regex("a"))
    pids = processes(compiler)
    compiler.close()
    compiler.close()
    assert wait_until_gone(*pids)


def test_a_constraint_that_takes_long_to_follow_fails_alone(compiler: ConstraintCompiler) -> None:
    """Guards the batch: a grammar with many readings takes longer at each token."""
    clock = iter(range(1000))
    step_s = limits.CONSTRAINT_EXTRA_S_MAX
    compiler._time = FollowTime(lambda: next(clock) * step_s)
    slow = compiler.compile(regex("a{100}"))
    slow.advance_to([])
    assert slow.mask().sum() == 1
    with pytest.raises(InvalidRequest, match="too long to follow"):
        slow.advance_to([ord("a")])


def test_many_slow_ones_have_one_time_and_quick_ones_go_on(compiler: ConstraintCompiler) -> None:
    """Guards the batch: twelve at once may not take twelve times as long."""
    now = 0.0
    compiler._time = FollowTime(lambda: now)
    matchers = [compiler.compile(regex("a{100}")) for _ in range(12)]
    quick = compiler.compile(regex("b{100}"))
    ended = 0
    for count in range(4):
        quick.advance_to([ord("b")] * count)
        for matcher in list(matchers):
            try:
                matcher.advance_to([ord("a")] * count)
            except InvalidRequest:
                matchers.remove(matcher)
                ended += 1
            else:
                started, now = now, now + 0.02
                matcher._time.take(now - started, 0)
                matcher._compiled.token_s = now - started
    assert ended == 12
    assert now < 4 * 12 * 0.02 / 2


def test_time_to_follow_is_not_saved_up(compiler: ConstraintCompiler) -> None:
    """Guards the batch: a thousand easy tokens must not pay for one that takes ten seconds."""
    times = iter([0.0, 0.0, 0.0, 0.3])
    compiler._time = FollowTime(lambda: next(times))
    matcher = compiler.compile(regex("a{1000,}"))
    matcher.advance_to([ord("a")] * 1000)
    matcher.mask()
    with pytest.raises(InvalidRequest, match="too long to follow"):
        matcher.advance_to([ord("a")] * 1001)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("lark", 'start: s\ns: s s | "a" | "b" | s s s'),
        ("regex", "((.*a.{15})|(.*b.{17})|(.*c.{19}))*"),
    ],
)
def test_what_grows_while_it_is_followed_ends_with_a_sentence(
    compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch, kind: str, text: str
) -> None:
    """Guards the batch and its memory: these compile at once, and then grow at each token."""
    monkeypatch.setattr(limits, "CONSTRAINT_EXTRA_S_MAX", 0.02)
    monkeypatch.setattr(limits, "CONSTRAINT_TOKEN_S_MAX", 0.0005)
    monkeypatch.setattr(grammar, "_LEXER_STATES_MAX", 2000)
    matcher = compiler.compile(Constraint(ConstraintKind(kind), text))
    random = np.random.default_rng(0)
    tokens = [ord("ab"[at]) for at in random.integers(2, size=5000)]
    with pytest.raises(InvalidRequest, match=r"too long to follow|too complex"):
        follow(matcher, tokens)


def hold(
    compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, list[str]]:
    """Compile nothing until the event, and do not wait long for it; the texts whose turn has
    come."""
    compiler._recompile_left_s = 0.1
    go_on, usual, begun = threading.Event(), grammar.compile_grammar, list[str]()

    def slow(tokenizer: object, wanted: Constraint) -> object:
        begun.append(wanted.text)
        assert go_on.wait(60.0)
        return usual(tokenizer, wanted)

    monkeypatch.setattr(constraint, "compile_grammar", slow)
    return go_on, begun


def test_a_slow_one_is_not_waited_for_in_a_batch(
    compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards everybody in the batch: what was not kept is for its caller to retry."""
    monkeypatch.setattr(constraint, "_CACHED_MAX", 1)
    compiler.prepare(regex("a+"))
    compiler.prepare(regex("b+"))
    go_on, _ = hold(compiler, monkeypatch)
    for _ in range(3):
        with pytest.raises(QueueFull, match="dropped to make room for others"):
            compiler.compile(regex("a+"))
    assert sum(each.name == "constraint-compile" for each in threading.enumerate()) == 1
    go_on.set()
    compiler.prepare(regex("a+"))
    compiler.compile(regex("a+"))


def test_a_batch_has_one_time_to_compile_again(
    compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards everybody in the batch: twelve slots with lost constraints were twelve waits."""
    monkeypatch.setattr(constraint, "_CACHED_MAX", 1)
    lost = [regex(letter) for letter in "abc"]
    for each in (*lost, regex("kept")):
        compiler.prepare(each)
    go_on, begun = hold(compiler, monkeypatch)
    for _ in range(2):
        compiler.begin_batch()
        for each in lost:
            with pytest.raises(QueueFull, match="dropped to make room for others"):
                compiler.compile(each)
        assert begun == ["a"], "neither in its batch nor in the next, as long as it is at work"
        assert compiler.compile(regex("kept")).mask().sum() == 1
    go_on.set()
    assert compiler._recompiling is not None
    compiler._recompiling.result(60.0)
    monkeypatch.setattr(limits, "CONSTRAINT_AGAIN_S_MAX", 60.0)
    compiler.begin_batch()
    assert compiler.compile(lost[1]).mask().sum() == 1
    assert begun == ["a", "b"]


def test_the_first_batch_of_a_process_has_more_time(
    compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards streams that go on after a crash: their constraints are lost all at once."""
    monkeypatch.setattr(limits, "CONSTRAINT_AGAIN_S_MAX", 0.0)
    compiler.begin_batch()
    assert compiler.compile(regex("prepared in the process before")).mask().sum() == 1
    compiler.begin_batch()
    with pytest.raises(QueueFull, match="dropped to make room for others"):
        compiler.compile(regex("another one"))
