"""Bad values of fields, by the numbered rows of expected answers; each names its field.

Rows that are tested elsewhere, or have nothing to be tested on:

32  chat templates made to hurt: also tests/unit/text/test_renderer.py
33  broken model files: tests/unit/models/test_gguf.py, tests/unit/backends/llamacpp/test_kernels.py
36  bad files and batches: tests/e2e/batches, in test_uploads.py, test_batches.py, test_bad_lines.py
40  headers without end: test_hostile_heads.py
42  chunks of one byte: test_early_answers.py
45  more requests than may wait: test_refusals.py
49  speculative decoding: there is none; no field and no setting asks for it
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from jitney.config import Settings
from jitney.server.openai.bodies import CompletionBody
from jitney.server.openai.chat_body import ChatBody
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import Running, World, bait, check_error, wait_until


@pytest.fixture(autouse=True)
def _idle_after(server: Running) -> Iterator[None]:
    yield
    server.check_idle()


BAD: list[tuple[int, str, Any]] = [
    *((13, "n", value) for value in (0, -1, 10**6, 17, 1e30, "2", True)),
    *((15, "max_tokens", value) for value in (-5, "8", 1.5, 8.0, 2**63)),
    (16, "max_tokens", 0),
    *((18, "temperature", value) for value in (-1, 3, "x", True)),
    *((18, "top_p", value) for value in (-1, 0, 2)),
    *((18, name, 1e9) for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")),
    *((18, "repetition_penalty", value) for value in (0, 1e-320, 1e-9)),
    *((21, "logit_bias", value) for value in ([1, 2], {"99999999": 1}, {"abc": 1})),
    *((21, "logit_bias", {token: bias}) for token, bias in (("1", 1e9), ("1", "x"), ("-1", 1))),
    (21, "logit_bias", {str(at): 1 for at in range(2000)}),
    *((22, "stop", value) for value in (5, [""], ["a"] * 1000, "a" * 10**6, [5], "")),
    *((23, "seed", value) for value in ("x", 2**70, 1.5)),
    *((24, "stream", value) for value in ("yes", 1)),
    (24, "stream_options", {"include_usage": True}),
    *((0, "min_p", value) for value in (-0.1, 2)),
    *((0, "top_k", value) for value in (-2, 1.5)),
    *((0, "priority", value) for value in ("urgent", 1.5, True)),
    *((0, "deadline_ms", value) for value in (0, -1, "5", 10**12)),
    *((0, "request_id", value) for value in ("a b", "", "x" * 65, "a\n")),
    *((0, "cache_salt", value) for value in ("", "x" * 300, 5)),
    *((0, "user", value) for value in ("x" * 300, 5)),
    *((0, "stop_token_ids", value) for value in ([-1], [10**6], "a", [1.5])),
    *((0, "min_tokens", value) for value in (-1, 100)),
]


@pytest.mark.parametrize(("row", "name", "value"), BAD)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_rows_13_to_24_values_out_of_range(
    server: Running, path: str, row: int, name: str, value: Any
) -> None:
    """Guards the sampler and native code; the caller is told which field to mend."""
    given: dict[str, Any] = {"prompt": "a"}
    if path.endswith("chat/completions"):
        given = {"messages": [{"role": "user", "content": "a"}]}
    error = check_error(server.post(path, {**given, "max_tokens": 8, name: value}), 400)
    assert error["param"].startswith(name), (row, error)


BAD_CHAT: list[tuple[int, str, Any]] = [
    *((19, "logprobs", value) for value in ("a", 5)),
    # It needs logprobs to be true, and is at most 20.
    *((19, "top_logprobs", value) for value in (3, 21, 1000)),
    *((31, "chat_template_kwargs", {"tokenize": value}) for value in (True, None)),
    (31, "chat_template_kwargs", {"enable_thinking": "yes"}),
    (31, "chat_template", "{{ 1 }}"),
    *((31, name, "<|end|>") for name in ("add_generation_prompt", "continue_final_message")),
    *((31, "reasoning_effort", value) for value in ("<|end|>", True)),
    # What has no effect has bounds as well.
    (0, "metadata", {str(at): "x" for at in range(17)}),
    *((0, "metadata", value) for value in ({"k" * 65: "x"}, {"k": "x" * 513}, {"k": 5}, "x")),
    (0, "metadata", {"k": {"deep": "x"}}),
    *((0, "store", value) for value in ("yes", 1)),
    *((0, name, "x" * 257) for name in ("prompt_cache_key", "safety_identifier")),
    (0, "cache_prompt", 1),
]


@pytest.mark.parametrize(("row", "name", "value"), BAD_CHAT)
def test_rows_19_and_31_fields_of_a_chat(server: Running, row: int, name: str, value: Any) -> None:
    """Guards memory and the template: whatever is accepted is small and of one type, and nothing
    of a caller's steers the template."""
    error = check_error(server.chat(**{name: value}), 400)
    assert error["param"].startswith(name), (row, error)


@pytest.mark.parametrize("count", [21, 1000])
def test_row_19_too_many_alternatives(server: Running, count: int) -> None:
    """Guards memory: at most twenty."""
    check_error(server.chat(logprobs=True, top_logprobs=count), 400, "top_logprobs")
    check_error(server.chat(logprobs=False, top_logprobs=3), 400, "top_logprobs")


def test_row_14_best_of(server: Running) -> None:
    """Guards `best_of`: supported where it changes nothing, refused elsewhere."""
    for value in (1, 3, 10**6):
        check_error(server.complete(n=2, best_of=value), 400, "best_of")
    check_error(server.complete(n=2, best_of=3, stream=True), 400, "best_of")
    assert len(server.complete(n=2, best_of=2).json()["choices"]) == 2


def test_row_17_max_tokens_beyond_the_context(server: Running) -> None:
    """Guards the clamp: all the room there is, and the end is called length."""
    choice = server.complete("a" * 4000, max_tokens=2**31 - 1).json()
    assert choice["choices"][0]["finish_reason"] == "length"
    assert choice["usage"] == {
        "prompt_tokens": 4000,
        "completion_tokens": 96,
        "total_tokens": 4096,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_row_20_logprobs_times_tokens_times_completions(server: Running) -> None:
    """Guards memory against a product of values that are each fine."""
    error = check_error(server.complete(logprobs=20, max_tokens=4000, n=16), 400, "logprobs")
    assert "100000" in error["message"]
    error = check_error(
        server.complete([[5] * 2000] * 60, logprobs=20, echo=True, max_tokens=1), 400, "logprobs"
    )


def test_row_22_a_stop_string_across_tokens(server: Running) -> None:
    """Guards the text: no part of a stop string is told, wherever tokens cut it."""
    whole = server.complete("b", temperature=0, max_tokens=30).json()["choices"][0]["text"]
    stop = whole[7:11]
    choice = server.complete("b", temperature=0, max_tokens=30, stop=stop).json()["choices"][0]
    assert choice["text"] == whole[: whole.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


def test_row_35_a_model_that_is_a_path_is_not_opened(server: Running, tmp_path: Path) -> None:
    """Guards the disk: whoever opens this waits for a writer, and would not answer."""
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    for name in (str(pipe), f"../../../../../..{pipe}"):
        check_error(server.complete(model=name), 404, "model")
        check_error(server.chat(model=name), 404, "model")
        check_error(server.get(f"/v1/models/{quote(name, safe='')}"), 404)
        check_error(server.get(f"/v1/models{name}"), 404)


@pytest.mark.parametrize("name", ["gpt-4", "../../x", "", "fake\n"])
def test_row_25_unknown_models(server: Running, name: str) -> None:
    """Guards against answering with another model than the one that was asked."""
    error = check_error(server.complete(model=name), 404, "model")
    assert error["code"] == "model_not_found"
    assert server.complete(model="other-name").json()["model"] == "fake"


@pytest.mark.parametrize("streams", [False, True])
def test_row_26_prompts_over_the_context_ten_times(server: Running, streams: bool) -> None:
    """Guards the first byte: also for a stream this is a status."""
    for _ in range(10):
        error = check_error(server.complete("a" * 5000, stream=streams), 400, "prompt")
        assert error["code"] == "context_length_exceeded"
        error = check_error(server.chat("a" * 5000, stream=streams), 400, "messages")
        assert error["code"] == "context_length_exceeded"
    error = check_error(server.complete([1] * 5000, stream=streams), 400, "prompt")
    assert "whoever loads the model can raise max_model_len" in error["message"], "no caller can"


def test_row_32_a_chat_that_drives_its_template_over_the_limit(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards everybody else: that request fails with a sentence, and the next one is answered."""
    monkeypatch.setattr("jitney.core.limits.TEMPLATE_S_MAX", 0.2)
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    source = "{% if messages[0].content == 'bomb' %}" + loops + "{% endif %}<|user|>hello"
    server = start(World(template=source))
    for _ in range(2):
        error = check_error(server.chat("bomb"), 400)
        assert error["code"] == "unsupported_by_model"
        assert "fails on these messages" in error["message"]
        # An ordinary one has as little time, which a busy machine may need for itself.
        wait_until(lambda: server.chat().status_code == 200, "nobody else is answered")
    server.check_idle()


IMAGES = [
    "file:///etc/passwd",
    "http://169.254.169.254/",
    "http://localhost:{port}/",
    "http://127.0.0.1:{port}/image.png",
    "data:" + "a" * 10**6,
]


@pytest.mark.parametrize("address", IMAGES)
def test_row_34_images(server: Running, address: str) -> None:
    """Guards the network: no address of a caller's is ever opened."""
    with bait() as caught:
        parts = [
            {"type": "image_url", "image_url": {"url": address.replace("{port}", str(caught.port))}}
        ]
        body = {"messages": [{"role": "user", "content": parts}]}
        for path in ("/v1/chat/completions", "/tokenize"):
            error = check_error(server.post(path, body), 400, "messages[0].content")
            assert "image input is not supported" in error["message"]
        assert not caught.was_called()


def test_row_49_speculative_decoding_is_not_there() -> None:
    """Guards the reason above: whoever adds it finds that its row has no test yet."""
    bodies = (CompletionBody, ChatBody)
    names = {name for body in bodies for name in (*body.model_fields, *body.refused)}
    names |= {*Settings.__dataclass_fields__}
    assert not [name for name in names if "draft" in name or "specul" in name]
