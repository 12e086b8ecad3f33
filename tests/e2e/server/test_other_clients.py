"""What clients made for OpenAI, vLLM and llama-server send, and what they then expect."""

from typing import Any

import pytest

from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import Running, World, check_error


def test_no_limit_of_tokens_is_all_the_room_there_is(server: Running) -> None:
    """Guards llama-server's clients, to which -1 is no limit; other numbers below 1 are refused."""
    prompt = "a" * 4000
    usage = server.complete(prompt, max_tokens=-1).json()["usage"]
    assert usage["total_tokens"] == 4096
    # For a chat this is the default, too.
    for limit in ({"max_tokens": -1}, {"max_completion_tokens": -1}, {}):
        body = {"messages": [{"role": "user", "content": prompt}], **limit}
        reply = server.post("/v1/chat/completions", body).json()
        assert reply["usage"]["total_tokens"] == 4096, limit
        assert reply["choices"][0]["finish_reason"] == "length"
    for value in (0, -2):
        error = check_error(server.complete(max_tokens=value), 400, "max_tokens")
        assert "-1" in error["message"]


def test_repeat_penalty_is_repetition_penalty(server: Running) -> None:
    """Guards llama-server's name for it: the same text, and never both."""
    texts = [
        server.complete("the bus", temperature=0, max_tokens=60, **given).json()["choices"]
        for given in ({"repetition_penalty": 3.0}, {"repeat_penalty": 3.0}, {})
    ]
    assert texts[0] == texts[1] != texts[2]
    error = check_error(server.complete(repeat_penalty=2, repetition_penalty=2), 400)
    assert error["param"] == "repeat_penalty"


def test_without_cache_prompt_nothing_is_reused(server: Running) -> None:
    """Guards whoever measures: with false nothing comes from a cache, and nothing stays for it."""

    def cached(**fields: Any) -> int:
        reply = server.complete("the road " * 100, **fields).json()
        count: int = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    assert cached(cache_prompt=False) == 0
    assert cached() == 0, "what was not to be kept was found"
    assert cached(cache_prompt=True) > 0
    assert cached(cache_prompt=False) == 0


EFFORT = (
    "{% if reasoning_effort is defined %}[{{ reasoning_effort }}]{% endif %}"
    "{% if enable_thinking is defined %}({{ enable_thinking }}){% endif %}"
    "{{ messages[0].content }}"
)


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ({}, "x"),
        ({"reasoning_effort": "high"}, "[high]x"),
        ({"reasoning_effort": "none"}, "[none](False)x"),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "[none](True)x",
        ),
    ],
)
def test_the_template_is_told_the_effort(
    start: Start, fields: dict[str, Any], written: str
) -> None:
    """Guards models whose templates read it; none is no thinking, unless that is asked for."""
    server = start(World(template=EFFORT))
    usage = server.chat("x", **fields).json()["usage"]
    assert usage["prompt_tokens"] == len(written)
    server.check_idle()


def test_the_last_message_is_continued_where_it_ends(server: Running) -> None:
    """Guards whoever begins the answer for the model: no new turn between, and vLLM's defaults."""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the bus is"}]

    def told(**fields: Any) -> str:
        tokens = server.post("/tokenize", {"messages": messages, **fields}).json()["tokens"]
        text: str = server.post("/detokenize", {"tokens": tokens}).json()["prompt"]
        reply = server.post(
            "/v1/chat/completions", {"messages": messages, "max_tokens": 1, **fields}
        )
        assert reply.json()["usage"]["prompt_tokens"] == len(tokens), fields
        return text

    start = "<|bos|><|user|>hi<|end|><|assistant|>the bus is"
    assert told() == f"{start}<|end|><|assistant|>"
    assert told(add_generation_prompt=False) == f"{start}<|end|>"
    assert told(continue_final_message=True) == start
    assert told(continue_final_message=True, add_generation_prompt=False) == start
    both = {"continue_final_message": True, "add_generation_prompt": True}
    for path in ("/v1/chat/completions", "/tokenize"):
        error = check_error(server.post(path, {"messages": messages, **both}), 400)
        assert error["param"] == "continue_final_message"
    error = check_error(server.post("/tokenize", {"prompt": "a", **both}), 400, "prompt")
    assert "go with messages" in error["message"]


def test_an_answer_goes_on_from_the_text_that_was_begun(server: Running) -> None:
    """Guards the answer: it is what a plain completion of the same prompt would be."""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the bus"}]
    given = {"temperature": 0, "max_tokens": 12}
    body = {"messages": messages, "continue_final_message": True, **given}
    answer = server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    prompt = "<|bos|><|user|>hi<|end|><|assistant|>the bus"
    assert answer == server.complete(prompt, **given).json()["choices"][0]["text"]


def test_parts_of_a_message_are_lines(server: Running) -> None:
    """Guards the words at the seam: `What is` and `the best` are not `What isthe best`."""
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "the best book"}]
    counts = [
        server.post("/tokenize", {"messages": [{"role": "user", "content": content}]}).json()
        for content in (parts, "What is\nthe best book")
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/chat/completions", "; use /v1/chat/completions."),
        ("/v1/chat/completions/", "; use /v1/chat/completions."),
        ("/v1/v1/chat/completions", "; use /v1/chat/completions."),
        ("/completions", "; use /v1/completions."),
        ("/completion", "; use /v1/completions."),
        ("/models", "; use /v1/models."),
        ("/models/fake", "; use /v1/models/NAME."),
        ("/embeddings", "no embeddings."),
        ("/v1/embeddings", "no embeddings."),
        ("/v1/tokenize", "; use /tokenize."),
        ("/v1", "; use /v1/chat/completions or /v1/completions."),
        ("/nowhere", "There is nothing at this path; /openapi.json lists those there are."),
    ],
)
def test_a_path_of_another_server_is_answered_with_ours(
    server: Running, path: str, words: str
) -> None:
    """Guards base addresses that lack /v1, or have it twice: the sentence names the path."""
    for response in (server.get(path), server.post(path, {})):
        assert check_error(response, 404)["message"].endswith(words)
