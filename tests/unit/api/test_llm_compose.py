"""From settings to parts: the limits that depend on the model, and what is refused."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from jitney import LLM, SamplingParams
from jitney.backends.process.client import ProcessBackend
from jitney.config import Settings, resolve
from jitney.core.backend import Traits
from jitney.core.scheduler_settings import Mix, Policy, Strategy
from jitney.errors import ConfigError, EngineStopped, ModelError
from jitney.loading.compose import assemble, name_of, scheduler_settings
from tests.e2e.server.processes import children, is_alive


def traits(**changed: Any) -> Traits:  # Any: of each field's type
    values = {"name": "fake", "slots_max": 32, "kv_tokens": 16_384, "model_len_max": 4096}
    return Traits(**{**values, "batch_invariant": True, **changed})


def test_what_people_set_reaches_the_scheduler() -> None:
    """Guards against a choice that is accepted and not in force."""
    given = resolve(
        {"strategy": "dynamic", "policy": "fair", "mix": "balanced", "max_wait_ms": 20}, None, {}
    )
    found = scheduler_settings(given.settings, traits())
    assert found.strategy is Strategy.DYNAMIC
    assert found.policy is Policy.FAIR
    assert found.mix is Mix.BALANCED
    assert found.wait_s == 0.02
    adaptive = resolve({"strategy": "adaptive", "target_stall_ms": 30}, None, {})
    assert scheduler_settings(adaptive.settings, traits()).stall_s_target == 0.03


@pytest.mark.parametrize(
    ("kv_tokens", "block_tokens", "expected"), [(16_384, 1, 4096), (1000, 1, 1000), (1000, 64, 960)]
)
def test_the_longest_sequence_follows_the_model_and_the_memory(
    kv_tokens: int, block_tokens: int, expected: int
) -> None:
    """Guards the promise that a request which was accepted fits alone."""
    found = scheduler_settings(Settings(), traits(kv_tokens=kv_tokens, block_tokens=block_tokens))
    assert found.model_len_max == expected


def test_a_length_that_is_asked_for_is_refused_rather_than_lowered() -> None:
    """Guards against limits that are changed in silence."""
    assert scheduler_settings(Settings(max_model_len=100), traits()).model_len_max == 100
    with pytest.raises(ConfigError, match="4096 tokens that the model was made for"):
        scheduler_settings(Settings(max_model_len=5000), traits())
    with pytest.raises(ConfigError, match="960 tokens"):
        scheduler_settings(Settings(max_model_len=1000), traits(kv_tokens=1000, block_tokens=64))


def test_a_file_that_is_no_model_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Guards against native code that meets a text file."""
    file = tmp_path / "notes.gguf"
    file.write_text("no model at all")
    for path in (file, tmp_path / "missing.gguf"):
        with pytest.raises(ModelError, match=path.name):
            LLM(path)


def test_slots_leave_room_for_cached_prefixes() -> None:
    """Guards prefix reuse: with one slot per running sequence there is nothing to keep."""
    for max_num_seqs, slots in ((1, 17), (16, 32), (100, 200)):
        assembly = assemble(Settings(backend="fake", max_num_seqs=max_num_seqs))
        assert assembly.engine.backend.traits.slots_max == slots
        assembly.close()


def test_nothing_is_left_of_a_model_that_is_closed() -> None:
    """Guards the machine: the template's process goes with the model, and chats are refused."""
    before = children(os.getpid())
    llm = LLM(backend="fake")
    (pid,) = set(children(os.getpid())) - set(before)
    assert llm.chat_prompt([{"role": "user", "content": "hi"}]).tokens
    assert set(children(os.getpid())) - set(before) == {pid}, "it was started while loading"
    llm.close()
    assert not is_alive(pid)
    with pytest.raises(EngineStopped):
        llm.chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("source", ["{% if %}", "{{ 3**(10**8) }}"])
def test_a_bad_chat_template_is_told_at_loading(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the operator, who must not hear of it from a caller; and nothing is left behind."""
    monkeypatch.setattr("jitney.tokenizers.byte_tokenizer._CHAT_TEMPLATE", source)
    monkeypatch.setattr("jitney.core.limits.TEMPLATE_COMPILE_S_MAX", 1.0)
    before = children(os.getpid())
    with pytest.raises(ModelError, match="The chat template"):
        LLM(backend="fake")
    assert children(os.getpid()) == before


def test_a_model_without_a_chat_template_has_no_process_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the memory of the machine."""
    monkeypatch.setattr("jitney.tokenizers.byte_tokenizer._CHAT_TEMPLATE", None)
    before = children(os.getpid())
    with LLM(backend="fake") as llm:
        assert children(os.getpid()) == before
        with pytest.raises(ModelError, match="no chat template"):
            llm.chat([{"role": "user", "content": "hi"}])


def test_more_sequences_than_llama_cpp_can_tell_apart_are_refused_before_loading() -> None:
    """Guards against a native assertion, and against a download for nothing."""
    with pytest.raises(ConfigError, match="256 sequences"):
        assemble(Settings(backend="llamacpp", max_num_seqs=300))


def test_a_seed_for_the_engine_repeats_unseeded_requests() -> None:
    """Guards the setting `seed`; two runs of 12 free tokens agree by chance below 1e-9."""
    params = SamplingParams(temperature=2.0, max_tokens=12)
    texts = []
    for _ in range(2):
        with LLM(backend="fake", seed=3) as llm:
            texts.append([each.outputs[0].text for each in llm.generate(["x", "x"], params)])
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]


def test_a_backend_process_that_is_killed_in_mid_answer_is_not_seen_by_the_reader() -> None:
    """Guards the whole way: process, recovery, resumption, text."""
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    with LLM(backend="fake", backend_process=True) as llm:
        expected = llm.generate("the bus", params)[0].outputs[0].text
        backend = llm.engine.backend
        assert isinstance(backend, ProcessBackend)
        handle = llm.submit("the bus", params)
        texts: list[str] = []
        for delta in handle:
            if not texts:
                os.kill(backend.pid, signal.SIGKILL)
            texts.append(delta.text)
        assert "".join(texts) == expected
        assert llm.stats().backend_failure_count <= 1


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("owner/name:Q8_0", "owner/name:Q8_0"),
        ("folder/model.gguf", "model"),
        ("none", "SmolLM2-135M-Instruct"),
    ],
)
def test_a_model_is_called_as_it_was_named(model: str, name: str) -> None:
    """Guards what clients ask for: the name that was given, not that of a file in a cache."""
    assert name_of(resolve({"model": model}, None, {}).settings) == name
