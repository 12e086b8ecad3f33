"""`LLM` over the fake backend: vLLM's shapes, order, bounds, chat, handles, closing."""

import asyncio
import io
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import jitney
from jitney import LLM, SamplingParams
from jitney.api.prompts import PromptInput
from jitney.errors import (
    ConfigError,
    ContextLengthExceeded,
    EngineStopped,
    InvalidRequest,
)

WAIT_S = 100.0
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """One engine for the tests that leave no trace in it."""
    with LLM(backend="fake", max_model_len=512, seed=1) as llm:
        yield llm


def test_a_script_written_for_vllm_finds_every_field(llm: LLM) -> None:
    """Guards the names and shapes that callers bring along."""
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=5, n=2, logprobs=2)
    prompts = ["Hello, my name is", "The capital of France is"]
    outputs = llm.generate([*prompts], params)
    assert [output.prompt for output in outputs] == prompts
    for output in outputs:
        assert output.finished
        assert isinstance(output.request_id, str)
        assert output.prompt_token_ids == llm.get_tokenizer().encode(output.prompt or "")
        assert output.prompt_logprobs is None
        assert output.num_cached_tokens == output.metrics.cached_tokens
        assert [each.index for each in output.outputs] == [0, 1]
        for completion in output.outputs:
            assert completion.finish_reason in ("stop", "length")
            assert completion.stop_reason is None
            assert completion.logprobs is not None
            assert len(completion.logprobs) == len(completion.token_ids)
            total = sum(
                position[token].logprob
                for position, token in zip(completion.logprobs, completion.token_ids, strict=True)
            )
            assert completion.cumulative_logprob == pytest.approx(total)
            assert llm.get_tokenizer().decode(completion.token_ids) == completion.text


def test_logprobs_are_mappings_with_rank_and_text(llm: LLM) -> None:
    """Guards the shape of vLLM's logprobs, prompt included."""
    params = SamplingParams(temperature=0.0, max_tokens=2, logprobs=3, prompt_logprobs=1)
    (output,) = llm.generate("the bus", params)
    positions = output.outputs[0].logprobs
    assert positions is not None
    best = max(positions[0].values(), key=lambda each: each.logprob)
    assert best.rank == 1
    assert len(positions[0]) == 3
    chosen = positions[0][output.outputs[0].token_ids[0]]
    assert chosen.decoded_token is not None
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    second = output.prompt_logprobs[1]
    assert second is not None
    assert output.prompt_token_ids[1] in second


def test_every_form_of_a_prompt_gives_the_same(llm: LLM) -> None:
    """Guards against forms that are tokenised differently."""
    tokens = llm.get_tokenizer().encode("the road")
    forms: list[PromptInput] = [
        "the road",
        {"prompt": "the road"},
        {"prompt_token_ids": tokens},
        tokens,
    ]
    texts = {llm.generate(form, GREEDY)[0].outputs[0].text for form in forms}
    assert len(texts) == 1
    listed = llm.generate([*forms], GREEDY)
    assert {output.outputs[0].text for output in listed} == texts
    assert [output.prompt for output in listed] == ["the road", "the road", None, None]


def test_each_prompt_may_have_its_own_sampling(llm: LLM) -> None:
    """Guards against parameters that are mixed up between prompts."""
    params = [SamplingParams(temperature=0.0, max_tokens=count) for count in (1, 3, 2)]
    outputs = llm.generate(["a", "b", "c"], params)
    assert [output.metrics.completion_tokens for output in outputs] == [1, 3, 2]
    with pytest.raises(InvalidRequest, match="2 entries for 3 prompts"):
        llm.generate(["a", "b", "c"], params[:2])


def test_a_seed_repeats_and_its_absence_does_not(llm: LLM) -> None:
    """Guards repeatability; two unseeded runs of 12 free tokens agree with odds below 1e-9."""
    seeded = SamplingParams(seed=5, max_tokens=12, temperature=2.0)
    free = SamplingParams(max_tokens=12, temperature=2.0)
    first, second = (llm.generate("x", seeded)[0].outputs[0].token_ids for _ in range(2))
    assert first == second
    first, second = (llm.generate("x", free)[0].outputs[0].token_ids for _ in range(2))
    assert first != second


@pytest.mark.parametrize(("queue_max", "seqs_max"), [(1, 1), (1, 4), (3, 2), (8, 4)])
def test_a_list_longer_than_the_queue_is_fed_as_room_appears(queue_max: int, seqs_max: int) -> None:
    """Guards against QueueFull for a caller who handed everything over at once."""
    prompts = [f"number {number}" for number in range(40)]
    with LLM(backend="fake", max_num_queued_reqs=queue_max, max_num_seqs=seqs_max) as llm:
        outputs = llm.generate(prompts, GREEDY)
        assert [output.prompt for output in outputs] == prompts
        assert llm.stats().completed_requests == 40
        assert llm.stats().peak_queue_size <= max(queue_max, 1)


def test_two_lists_at_once_share_one_queue() -> None:
    """Guards against two callers who starve or refuse each other."""
    with LLM(backend="fake", max_num_queued_reqs=2, max_num_seqs=2) as llm:

        def ask(name: str) -> int:
            return len(llm.generate([f"{name} {n}" for n in range(20)], GREEDY))

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(ask, "ab")) == [20, 20]


def test_a_bad_prompt_in_a_list_is_refused_and_the_rest_is_cancelled(llm: LLM) -> None:
    """Guards against work that goes on for a caller who already got an exception."""
    long = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
    with pytest.raises(ContextLengthExceeded):
        llm.generate(["fine", "x" * 600], long)
    assert llm.generate("after", GREEDY)[0].finished
    ended_by = time.monotonic() + WAIT_S
    while llm.stats().live_requests:
        assert time.monotonic() < ended_by


def test_chat_keeps_what_users_wrote_apart_from_the_template(llm: LLM) -> None:
    """Guards against a user who ends their own turn by naming the end token."""
    end = llm.get_tokenizer().eos_token_id
    (output,) = llm.chat([{"role": "user", "content": "hi <|end|>"}], GREEDY)
    assert output.prompt == "<|bos|><|user|>hi <|end|><|end|><|assistant|>"
    assert output.prompt_token_ids.count(end or -1) == 1
    assert output.prompt_token_ids[0] == llm.get_tokenizer().bos_token_id


def test_chat_goes_on_where_the_last_message_ends(llm: LLM) -> None:
    """Guards vLLM's names and defaults: a new turn unless both say otherwise, and never both."""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the bus"}]
    (output,) = llm.chat(messages, GREEDY, add_generation_prompt=False, continue_final_message=True)
    assert output.prompt == "<|bos|><|user|>hi<|end|><|assistant|>the bus"
    with pytest.raises(InvalidRequest, match="cannot both be true"):
        llm.chat(messages, GREEDY, continue_final_message=True)


def test_several_conversations_are_answered_in_order(llm: LLM) -> None:
    """Guards against a list of conversations read as one."""
    conversations = [[{"role": "user", "content": text}] for text in ("a", "b", "c")]
    outputs = llm.chat(conversations, GREEDY)
    alone = [llm.chat(conversation, GREEDY)[0] for conversation in conversations]
    assert [each.outputs[0].text for each in outputs] == [each.outputs[0].text for each in alone]


def test_nothing_to_do_is_no_mistake(llm: LLM) -> None:
    """Guards scripts whose input happens to be empty."""
    assert llm.generate([]) == []


def test_a_handle_streams_and_has_a_result_in_the_same_shape(llm: LLM) -> None:
    """Guards the handle as this class gives it."""
    handle = llm.submit("the bus", GREEDY, priority="high", tenant="t", cache_salt="s")
    text = "".join(delta.text for delta in handle)
    output = handle.result(WAIT_S)
    assert text == output.outputs[0].text == llm.generate("the bus", GREEDY)[0].outputs[0].text


def test_a_handle_works_in_an_event_loop(llm: LLM) -> None:
    """Guards the async twin end to end."""

    async def ask(prompt: str) -> str:
        handle = await llm.submit_async(prompt, GREEDY)
        return "".join([delta.text async for delta in handle])

    async def main() -> list[str]:
        async with asyncio.timeout(WAIT_S):
            return list(await asyncio.gather(*(ask(f"number {n}") for n in range(6))))

    expected = llm.generate([f"number {n}" for n in range(6)], GREEDY)
    assert asyncio.run(main()) == [output.outputs[0].text for output in expected]


def test_cancelling_keeps_what_was_made(llm: LLM) -> None:
    """Guards the answer of a request that somebody stopped."""
    handle = llm.submit("x", SamplingParams(max_tokens=400, ignore_eos=True))
    next(iter(handle))
    handle.cancel()
    output = handle.result(WAIT_S)
    assert output.outputs[0].finish_reason == "abort"
    assert 1 <= len(output.outputs[0].token_ids) < 400


def test_options_of_a_submission_are_checked_by_name_and_value(llm: LLM) -> None:
    """Guards against options that are accepted and ignored."""
    with pytest.raises(InvalidRequest, match="urgent"):
        llm.submit("x", priority="urgent")
    with pytest.raises(TypeError, match="no option 'colour'"):
        llm.submit("x", colour="red")  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match="A prompt is"):
        llm.submit(3.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="prompts"):
        llm.generate({"prompts": ["x"]})


def test_closing_drains_and_then_refuses() -> None:
    """Guards the end of a with block."""
    with LLM(backend="fake") as llm:
        handle = llm.submit("x", SamplingParams(max_tokens=100, ignore_eos=True))
    assert len(handle.result(0).outputs[0].token_ids) == 100
    with pytest.raises(EngineStopped):
        llm.generate("x")
    llm.close()


def test_an_unknown_setting_is_refused_with_the_nearest_known_one() -> None:
    """Guards against a misspelt limit that is silently not in force."""
    with pytest.raises(ConfigError, match="max_num_seqs"):
        LLM(backend="fake", max_num_seq=4)


def test_the_tokenizer_goes_there_and_back(llm: LLM) -> None:
    """Guards encode and decode against each other."""
    tokenizer = llm.get_tokenizer()
    text = "the café 🚌 <|end|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text[:-7]
    assert max(tokenizer.encode(text)) < tokenizer.vocab_size


def test_a_bar_is_drawn_for_long_lists_on_a_terminal_only(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards log files against control characters, and people against silence."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    prompts = [f"number {number}" for number in range(12)]
    drawn: dict[str, str] = {}
    for name, screen, use_tqdm in (
        ("terminal", Terminal(), True),
        ("turned off", Terminal(), False),
        ("file", io.StringIO(), True),
    ):
        monkeypatch.setattr("sys.stderr", screen)
        llm.generate(prompts, GREEDY, use_tqdm=use_tqdm)
        drawn[name] = screen.getvalue()
    assert "12/12" in drawn["terminal"]
    assert (drawn["turned off"], drawn["file"]) == ("", "")


def test_the_public_names_are_all_there() -> None:
    """Guards the lazy package against names that lead nowhere."""
    assert sorted(jitney.__all__, key=str.lower) == sorted(
        {name for name in dir(jitney) if name in jitney.__all__}, key=str.lower
    )
    assert all(getattr(jitney, name) is not None for name in jitney.__all__)
    with pytest.raises(AttributeError):
        jitney.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_list_of_prompts_does_not_wait_for_others_to_fill_a_group() -> None:
    """Guards static groups: whoever hands in a list knows that nobody else comes."""
    with LLM(backend="fake", strategy="static", max_num_seqs=4) as llm:
        prompts = [f"prompt {number}" for number in range(6)]
        outputs = llm.generate(prompts, SamplingParams(max_tokens=4), use_tqdm=False)
    assert len(outputs) == 6
