"""Ratios of a comparison, peers that fail, our own server's settings, and commands of servers."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from jitney.config import Settings, environment, known_settings, resolve
from jitney.errors import MissingDependency, SetupError
from jitney_lab.bench import compare
from jitney_lab.bench.compare import IN_PROCESS, SERVED, Comparison, Contender, files_of
from jitney_lab.bench.in_process import for_bench
from jitney_lab.bench.peers import libraries
from jitney_lab.bench.peers.servers import (
    Room,
    ServerPlan,
    jitney_server,
    llama_servers,
    other_servers,
    unpack_for_vllm,
)
from jitney_lab.bench.workload import Workload

MODEL = Path("m.gguf")


def made(
    said: list[str], *, runs: int = 2, flags: Mapping[str, object] | None = None
) -> Comparison:
    files = {"": MODEL}
    return Comparison(resolve(flags or {}, None, {}), files, runs=runs, seed=5, say=said.append)


def constant(rate: float) -> Callable[[Workload], float]:
    return lambda load: rate


OURS = {SERVED: constant(100.0), IN_PROCESS: constant(200.0)}


def failing(good_count: int, error: Exception) -> Callable[[Workload], float]:
    """A peer that fails after so many loads."""
    left = [50.0] * good_count

    def rate(load: Workload) -> float:
        if not left:
            raise error
        return left.pop()

    return rate


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other system is installed."""
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    monkeypatch.delenv("VLLM_PYTHON", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


def test_a_ratio_is_ours_before_and_after_over_theirs() -> None:
    said: list[str] = []
    seen: list[int] = []
    comparison = made(said)
    ours = iter([0.0, 90.0, 110.0, 30.0, 50.0])

    def theirs(load: Workload) -> float:
        seen.append(load.seed)
        return 50.0

    peer = Contender("peer", theirs, SERVED)
    comparison._measure({SERVED: lambda load: next(ours), IN_PROCESS: constant(1.0)}, [peer], 4)
    assert comparison._ratios == {"peer": {"4": [2.0, 0.8]}}
    assert comparison._rates[SERVED] == {"4": [90.0, 110.0, 30.0, 50.0]}
    # It is measured though nobody is compared with it.
    assert comparison._rates[IN_PROCESS] == {"4": [1.0, 1.0]}
    # One load to warm up, and another one for each run.
    assert len(set(seen)) == 3
    assert len(said) == 2


def test_what_comes_after_one_peer_comes_before_the_next() -> None:
    comparison = made([], runs=1)
    ours = iter([0.0, 10.0, 30.0, 50.0])
    peers = [Contender(name, constant(10.0), SERVED) for name in ("one", "two")]
    comparison._measure({SERVED: lambda load: next(ours), IN_PROCESS: constant(1.0)}, peers, 4)
    assert comparison._ratios == {"one": {"4": [2.0]}, "two": {"4": [4.0]}}


def test_a_peer_that_fails_is_left_out_and_the_others_go_on() -> None:
    said: list[str] = []
    comparison = made(said)
    peers = [
        Contender("cold", failing(0, OSError("no\nmemory")), SERVED),
        Contender("weak", failing(2, RuntimeError("broken pipe")), SERVED),
        Contender("empty", constant(0.0), IN_PROCESS),
        Contender("good", constant(50.0), SERVED),
    ]
    comparison._measure(OURS, peers, 4)
    assert comparison._ratios == {"weak": {"4": [2.0]}, "good": {"4": [2.0, 2.0]}}
    assert comparison._left_out == [
        "cold at 4 is left out: no memory",
        "empty at 4, from run 1 on is left out: it made no tokens",
        "weak at 4, from run 2 on is left out: broken pipe",
    ]
    assert set(comparison._left_out) <= set(said)
    assert comparison._rates[IN_PROCESS]["4"] == [200.0, 200.0, 200.0]


def test_settings_with_which_a_server_fails_are_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = [ServerPlan(name="s", command=(), settings=word) for word in ("bad", "slow", "fast")]

    def server_rate(stack: object, plan: ServerPlan) -> Callable[[Workload], float]:
        if plan.settings == "bad":
            raise OSError("no such file")
        return constant(10.0 if plan.settings == "slow" else 20.0)

    monkeypatch.setattr(compare, "_server_rate", server_rate)
    comparison = made([])
    comparison._search(lambda room: plans, 16)
    assert [plan.settings for plan in comparison._best] == ["fast"]
    assert [word.split(":")[0] for word in comparison._tried] == [
        "Tried s, slow",
        "Tried s, fast",
    ], "two that are far apart need no second trial"
    assert comparison._left_out == ["s (bad) is left out: no such file"]


def test_one_disturbed_trial_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards fairness: two settings that are close get the better of two trials each."""
    plans = [ServerPlan(name="s", command=(), settings=word) for word in ("best", "other")]
    # A short load and a longer one in each trial.
    speeds = {"best": iter([30.0, 20.0, 30.0, 30.0]), "other": iter([30.0, 25.0, 30.0, 24.0])}
    monkeypatch.setattr(
        compare, "_server_rate", lambda stack, plan: lambda load: next(speeds[plan.settings])
    )
    comparison = made([])
    comparison._search(lambda room: plans, 16)
    assert [plan.settings for plan in comparison._best] == ["best"]


@pytest.mark.parametrize(("clients", "searched"), [((1, 8), 8), ((4, 64), 16)])
def test_settings_are_searched_with_the_most_clients_up_to_sixteen(
    monkeypatch: pytest.MonkeyPatch, clients: tuple[int, ...], searched: int
) -> None:
    slots: set[int] = set()
    asked: set[int | None] = set()

    def family(room: Room) -> list[ServerPlan]:
        slots.add(room.slots)
        return [ServerPlan(name="s", command=())]

    def rate(load: Workload) -> float:
        asked.add(load.clients)
        return 1.0

    comparison = made([])
    monkeypatch.setattr(compare, "_server_rate", lambda stack, plan: rate)
    monkeypatch.setattr(comparison, "_found_families", lambda files: [family])
    monkeypatch.setattr(comparison, "_measure_at", lambda count: None)
    comparison.run(clients)
    assert (slots, asked) == ({searched}, {searched})


@pytest.mark.parametrize("flags", [{}, {"dtype": "float32", "kv_cache_dtype": "uint8"}])
def test_without_llama_cpp_everybody_runs_the_given_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, object]
) -> None:
    """Guards the usual install, which has OpenVINO alone, and its settings."""

    def ready(settings: Settings) -> Path:
        assert (settings.dtype, settings.kv_cache_dtype) == ("auto", "auto")
        raise MissingDependency("llama.cpp is not installed.")

    monkeypatch.setattr(compare, "ready_model", ready)
    said: list[str] = []
    model = tmp_path / "model.gguf"
    settings = replace(Settings(), model=model, **flags)  # type: ignore[arg-type]
    assert files_of(settings, said.append) == {"": model}
    assert "llama.cpp is not installed." in said[0]


@pytest.mark.usefixtures("nobody")
def test_what_was_measured_is_kept_when_we_fail_later(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = made([], runs=1)

    def ours(stack: object, count: int) -> dict[str, Callable[[Workload], float]]:
        if count == 64:
            raise SetupError("no memory")
        return OURS

    monkeypatch.setattr(comparison, "_ours", ours)
    result = comparison.run((4, 64))
    assert {row[1] for row in result.rows} == {"4"}
    assert "jitney at 64 is left out: no memory" in result.notes
    another = made([], runs=1)
    monkeypatch.setattr(another, "_ours", ours)
    with pytest.raises(SetupError):
        another.run((64,))


def test_llama_cpp_python_is_not_told_to_end_answers_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards its answers: by default one ends as soon as another request waits."""
    monkeypatch.setattr(libraries, "find_spec", lambda name: name if "llama_cpp" in name else None)
    (plan,) = other_servers(MODEL, Room(slots=4), [2])
    words = list(plan.command)
    assert words[words.index("--interrupt_requests") + 1] == "false"
    assert plan.extra_body == {"logit_bias": {"2": -100}}


def test_a_setting_that_is_far_slower_costs_its_build_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the best setting: it came after a slow one of the same build, and was not tried."""
    rates = {"other": 60.0, "good": 45.0, "slow": 14.0, "best": 64.0}
    plans = [
        ServerPlan(name=name, command=(), settings=word)
        for name, word in zip(("another", "s", "s", "s"), rates, strict=True)
    ]
    monkeypatch.setattr(compare, "_server_rate", lambda stack, plan: constant(rates[plan.settings]))
    comparison = made([])
    comparison._search(lambda room: plans, 16)
    assert [plan.settings for plan in comparison._best] == ["best"]


def test_a_build_that_is_far_slower_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the time of a search: one build takes a minute for what another does in seconds."""
    plans = [
        ServerPlan(name=name, command=(), settings=word)
        for name in ("fast", "slow")
        for word in ("one", "two")
    ]
    rates = {"fast": 100.0, "slow": 10.0}
    monkeypatch.setattr(compare, "_server_rate", lambda stack, plan: constant(rates[plan.name]))
    comparison = made([])
    comparison._search(lambda room: plans, 16)
    assert [word.split(":")[0] for word in comparison._tried] == [
        "Tried fast, one",
        "Tried fast, two",
        "Tried slow, one",
        "Tried fast, one",
        "Tried fast, two",
    ]
    assert comparison._best == [plans[0]]


@pytest.mark.usefixtures("nobody")
def test_jitney_is_measured_where_no_peer_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    # For the fake backend each letter is a token.
    monkeypatch.setattr(compare, "PROMPT_COUNT", 16)
    result = made([], runs=1, flags={"backend": "fake"}).run((2,))
    assert [row[:2] for row in result.rows] == [(SERVED, "2"), (IN_PROCESS, "2")]
    assert "LLAMA_SERVER" in result.notes[-1]
    rates = result.figures["tokens_per_s"]
    assert isinstance(rates, dict)
    assert all(value > 0 for each in rates.values() for value in each["2"])


def test_a_broken_package_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise OSError("libllama.so cannot be loaded")

    monkeypatch.setattr(libraries, "find_spec", broken)
    assert not libraries.is_installed("llama_cpp.server")
    assert libraries.library_peers(MODEL, 1) == []


def test_our_server_gets_the_settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITNEY_API_KEY", "secret")
    monkeypatch.setenv("JITNEY_THREADS", "7")
    flags = {
        "backend": "fake",
        "threads": 3,
        "backend_process": False,
        "target_stall_ms": 12.3456789,
        "saved_limit": "1000001",
        "queue_timeout_s": 1.0,
        "policy": "priority",
    }
    comparison = made([], flags=flags)
    changed = for_bench(comparison._resolved.settings, max_num_seqs=4)
    plan = jitney_server(None, comparison._given(changed))
    told = resolve({}, None, {**environment(), **plan.environment})
    assert told.serving.api_key == ()
    for each in known_settings():
        assert getattr(told.settings, each.name) == getattr(changed, each.name), each.name
    # The default of a server is another one, so it must be said.
    assert told.sources["backend_process"] != "default"
    assert told.sources["kv_tokens"] == "default"


def test_commands_have_their_port_and_model() -> None:
    words = jitney_server(MODEL, {}).on(1234)
    assert "PORT" not in words
    assert words[words.index("--port") + 1] == "1234"
    assert str(MODEL) in words
    assert ServerPlan(name="x", command=("a", "PORT")).on(7) == ["a", "7"]


def test_a_compiled_llama_server_is_found_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LLAMA_SERVER", str(tmp_path / "llama-server"))
    plans = [each for each in llama_servers(MODEL, Room(slots=4)) if "compiled" in each.name]
    assert len({each.settings for each in plans}) == 4
    assert all(each.command[0] == os.fspath(tmp_path / "llama-server") for each in plans)
    assert all(each.command[each.command.index("--ctx-size") + 1] == "2048" for each in plans)


def stand_in(path: Path, script: str) -> Path:
    """A program in the place of the Python with vLLM."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_vllm_is_left_out_if_the_model_cannot_be_unpacked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = stand_in(tmp_path / "python", "echo no module named gguf >&2; exit 1")
    monkeypatch.setenv("VLLM_PYTHON", str(python))
    comparison = made([])
    with ExitStack() as files:
        assert len(comparison._found_families(files)) == 1
    (sentence,) = comparison._left_out
    assert "vLLM is left out: m.gguf could not be unpacked" in sentence
    assert "no module named gguf" in sentence


def test_vllm_gets_the_unpacked_model_as_long_as_the_comparison_lasts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = stand_in(tmp_path / "python", 'test -z "$PYTHONPATH" -a "$2" = m.gguf && mkdir "$3"')
    stand_in(tmp_path / "vllm", "exit 1")
    monkeypatch.delenv("VLLM_PYTHON", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", "ours")
    comparison = made([])
    with ExitStack() as files:
        _, family = comparison._found_families(files)
        plans = family(Room(slots=4))
        words = plans[0].command
        folder = Path(words[words.index("--model") + 1])
        assert folder.is_dir()
    assert not folder.exists()
    assert [plan.settings for plan in plans] == ["bfloat16", "float32"]
    assert all(plan.command[0] == str(python) for plan in plans)
    assert all(plan.environment["PYTHONPATH"] == "" for plan in plans)


def test_a_python_that_is_not_there_is_a_setup_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="could not be unpacked"):
        unpack_for_vllm(tmp_path / "python", MODEL, tmp_path / "out")
