"""Tests of `jitney.config.policies`: a policy of one's own, from Python and by import path."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jitney import LLM, Candidate, SamplingParams, SchedulingPolicy
from jitney.cli.show import settings_json, value_text
from jitney.config import Settings, known_settings, resolve
from jitney.core.scheduler_settings import Policy
from jitney.errors import ConfigError

MODULE = """
class LongestFirst:
    def rank(self, candidate):
        return -candidate.prompt_tokens

class Needy(LongestFirst):
    def __init__(self, share):
        self.share = share

class Holder:
    inner = LongestFirst()

class Plain:
    pass

def number():
    return 3

LONGEST = LongestFirst()
"""

Write = Callable[[str, str], None]


class Noted:
    """Ranks by length, and remembers who was ranked."""

    def __init__(self) -> None:
        self.seen: list[Candidate] = []

    def rank(self, candidate: Candidate) -> float:
        self.seen.append(candidate)
        return candidate.prompt_tokens


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module into a folder that Python looks into."""
    monkeypatch.syspath_prepend(tmp_path)

    def written(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")

    return written


@pytest.mark.parametrize("name", ["LongestFirst", "LONGEST", "Holder.inner"])
def test_an_import_path_names_a_class_or_an_object(name: str, write: Write, tmp_path: Path) -> None:
    """Guards a policy that is set in a file, the environment or a flag."""
    write("orders_read", MODULE)
    path = f"orders_read:{name}"
    file = tmp_path / "a.yaml"
    file.write_text(f"scheduler_policy: {path}\n")
    for resolved in (
        resolve({}, file, {}),
        resolve({}, None, {"JITNEY_POLICY": f" {path} "}),
        resolve({"policy": path}, None, {}),
    ):
        policy = resolved.settings.policy
        assert isinstance(policy, SchedulingPolicy)
        assert type(policy).__name__ == "LongestFirst"
        shown = json.loads(settings_json(resolved))["policy"]["value"]
        assert shown == "orders_read:LongestFirst"
        known = {each.name: each for each in known_settings()}["policy"]
        assert value_text(known, policy, resolved.sources[known.name]) == shown


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("orders_none:A", r"cannot be imported \(ModuleNotFoundError: .*PYTHONPATH\.$"),
        ("orders_broken:A", r"fails while it is imported \(ZeroDivisionError: .*; import orders_b"),
        ("orders_bad:A", "and orders_bad has no A; name a class or an object in it"),
        ("orders_bad:Holder.outer", "and orders_bad has no Holder.outer"),
        ("orders_bad:Plain", r"which has no rank; give it a method rank\(candidate\)"),
        ("orders_bad:number", "which has no rank; "),
        ("orders_bad:Needy", r"cannot be made without arguments \(TypeError: .*give an object"),
        ("orders_bad", "expected one of fifo, priority, sjf, fair, or one of your own"),
        (":A", "expected one of fifo"),
        ("orders_bad:", "expected one of fifo"),
        ("../a:A", "expected one of fifo"),
        (3, "policy is 3 in flag --policy; expected one of fifo"),
    ],
)
def test_what_is_no_policy_is_refused_in_a_sentence(
    path: object, message: str, write: Write
) -> None:
    """Guards against a traceback, and says what was given, why not, and what to do."""
    write("orders_bad", MODULE)
    write("orders_broken", "1 / 0\n")
    with pytest.raises(ConfigError, match=message) as refused:
        resolve({"policy": path}, None, {})
    assert str(refused.value).startswith(f"policy is {path!r} in flag --policy")
    assert "\n" not in str(refused.value)


def test_python_gives_an_object_or_a_class() -> None:
    """Guards `LLM(policy=...)` and `Settings(policy=...)`: the object itself is the one asked."""
    own = Noted()
    assert Settings(policy=own).policy is own
    made = resolve({"policy": Noted}, None, {}, given_as="argument").settings.policy
    assert isinstance(made, Noted)
    with LLM(backend="fake", policy=own, max_num_seqs=1) as llm:
        llm.generate(["one", "two"], SamplingParams(max_tokens=2), use_tqdm=False)
    assert len(own.seen) == 2
    with pytest.raises(ConfigError, match=r"^policy is .*; expected one of fifo"):
        Settings(policy=object())  # type: ignore[arg-type]


def test_a_word_stays_a_word() -> None:
    """Guards the policies that are ours: the scheduler tells them apart by identity."""
    assert Settings(policy="Priority").policy is Policy.PRIORITY  # type: ignore[arg-type]
