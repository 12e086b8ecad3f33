"""Every backend honours the sampling of a slot, whatever path its tokens take."""

import json
import math
from dataclasses import replace

import pytest

from jitney.core.batch import Entry, Open, Release, Sampling, TokenLogprob
from jitney.core.params import Constraint, ConstraintKind
from jitney.errors import InvalidRequest
from tests.conformance.driver import TOLERANCE, TOP, Driver, greedy

CHOICES = ["alpha beta", "gamma delta", "epsilon"]


def drawn(seed: int, prompt_count: int) -> Sampling:
    """A draw at a temperature that spreads over many tokens."""
    return Sampling(seed=seed, prompt_count=prompt_count, temperature=1.5)


def test_draws_repeat_by_seed_and_position(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against a running generator: the same request must draw alike again."""
    first = driver.complete(0, tokens[:20], drawn(7, 20), 12)
    driver.run(operations=[Release(0)])
    again = driver.complete(3, tokens[:20], drawn(7, 20), 12)
    assert again == first


def test_draws_differ_by_seed(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against a seed that is ignored; twelve equal draws by chance are out of reach."""
    first = driver.complete(0, tokens[:20], drawn(7, 20), 12)
    other = driver.complete(1, tokens[:20], drawn(8, 20), 12)
    assert other != first


def test_draw_after_replay_is_the_same(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against draws that depend on how many came before in this process."""
    traits = driver.backend.traits
    if not traits.batch_invariant:
        pytest.skip("a replay rounds differently here, which can move a draw")
    completion = driver.complete(0, tokens[:20], drawn(7, 20), 12)
    driver.run(operations=[Open(1, drawn(7, 20))])
    if traits.decodes_differ:
        driver.feed(1, 0, tokens[:20])
        for at, token in enumerate(completion[:6]):
            replayed = driver.feed(1, 20 + at, (token,))
    else:
        replayed = driver.feed(1, 0, (*tokens[:20], *completion[:6]))
    assert replayed.token == completion[6]


def test_logprobs_are_of_the_chosen_token(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against logprobs of another row, unsorted lists, and values that are no logprobs."""
    driver.run(operations=[Open(0, greedy(30))])
    sample = driver.feed(0, 0, tokens[:30])
    assert sample.logprob is not None
    assert sample.logprob.token == sample.token
    values = [value for _, value in sample.logprob.top]
    assert len(values) == TOP
    assert all(math.isfinite(value) and value <= 0.0 for value in values)
    assert values == sorted(values, reverse=True)
    assert sum(math.exp(value) for value in values) <= 1.0 + 1e-3
    assert sample.logprob.top[0] == (sample.token, sample.logprob.logprob)


def test_no_logprobs_unless_asked(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against work that nobody wanted, and answers that nobody expects."""
    driver.run(operations=[Open(0, greedy(30, logprobs=None))])
    sample = driver.feed(0, 0, tokens[:30])
    assert sample.logprob is None
    assert sample.prompt_logprobs == ()


@pytest.mark.parametrize("span", [1, 7, 64])
def test_prompt_logprobs_do_not_depend_on_spans(
    driver: Driver, tokens: tuple[int, ...], span: int
) -> None:
    """Guards against prompt logprobs that are lost or doubled at the edge of a span."""
    sampling = replace(greedy(40), prompt_logprobs=3)
    driver.run(operations=[Open(0, sampling), Open(1, sampling)])
    whole = driver.feed(0, 0, tokens[:40]).prompt_logprobs
    parts: list[TokenLogprob] = []
    for position in range(0, 40, span):
        part = tokens[position : min(position + span, 40)]
        parts += driver.feed(1, position, part, wants_token=position + span >= 40).prompt_logprobs
    assert [each.token for each in whole] == list(tokens[1:40])
    assert [each.token for each in parts] == list(tokens[1:40])
    bound = 0.0 if driver.backend.traits.batch_invariant else TOLERANCE
    for one, other in zip(parts, whole, strict=True):
        assert abs(one.logprob - other.logprob) <= bound
        assert len(one.top) == 3


def test_completion_has_no_prompt_logprobs(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against completion tokens that are reported as prompt after a resume."""
    driver.run(operations=[Open(0, replace(greedy(10), prompt_logprobs=0))])
    sample = driver.feed(0, 0, tokens[:14])
    assert [each.token for each in sample.prompt_logprobs] == list(tokens[1:10])


def choice_sampling(prompt_count: int, temperature: float = 0.0) -> Sampling:
    """Only the choices may be said."""
    return Sampling(
        seed=3,
        prompt_count=prompt_count,
        temperature=temperature,
        constraint=Constraint(ConstraintKind.CHOICE, json.dumps(CHOICES)),
    )


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_constraint_is_obeyed(driver: Driver, tokens: tuple[int, ...], temperature: float) -> None:
    """Guards against a mask that is not applied, or applied to another row."""
    sampling = choice_sampling(10, temperature)
    assert sampling.constraint is not None
    driver.backend.prepare(sampling.constraint)
    completion = driver.complete(0, tokens[:10], sampling, 40)
    assert completion[-1] in driver.backend.vocabulary.eos_tokens
    assert driver.text(completion[:-1]) in CHOICES


def test_constraint_goes_on_after_replay(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against a constraint that starts over when its sequence resumes elsewhere."""
    completion = driver.complete(0, tokens[:10], choice_sampling(10), 40)
    kept = len(completion) // 2
    text = [*tokens[:10], *completion[:kept]]
    driver.run(operations=[Open(1, choice_sampling(10))])
    sample = driver.feed(1, 0, tuple(text))
    for _ in range(40):
        assert sample.token is not None, sample.fault
        text.append(sample.token)
        if sample.token in driver.backend.vocabulary.eos_tokens:
            break
        sample = driver.feed(1, len(text) - 1, (sample.token,))
    assert driver.text(text[10:-1]) in CHOICES
    assert text[10 : 10 + kept] == completion[:kept]


def test_constraint_does_not_bind_the_neighbour(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against a mask that leaks to the other rows of a batch."""
    driver.run(operations=[Open(0, greedy(20)), Open(1, choice_sampling(20))])
    free = driver.feed(0, 0, tokens[:20])
    driver.run(operations=[Release(0), Open(0, greedy(20))])
    beside, bound = driver.run(
        [Entry(0, 0, tokens[:20], True), Entry(1, 0, tokens[:20], True)]
    ).samples
    driver.assert_alike([beside], [free])
    assert bound.token is not None
    assert driver.text([bound.token])[0] in "age"


def test_bad_constraint_is_refused_by_prepare(driver: Driver) -> None:
    """Guards against a schema from a stranger that is only found bad inside a batch."""
    with pytest.raises(InvalidRequest):
        driver.backend.prepare(Constraint(ConstraintKind.REGEX, "(unclosed"))


def test_end_token_waits_for_min_tokens(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against an early end, and against an end that is never allowed again."""
    ends = driver.backend.vocabulary.eos_tokens
    eager = Sampling(
        seed=0,
        prompt_count=10,
        logit_bias=tuple((end, 100.0) for end in ends),
        min_tokens=5,
        end_tokens=ends,
    )
    assert len(driver.complete(0, tokens[:10], replace(eager, min_tokens=0), 9)) == 1
    completion = driver.complete(1, tokens[:10], eager, 9)
    assert len(completion) == 6
    assert completion[-1] in ends


def test_logit_bias_bans_and_forces(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against a bias that is not applied or applied to another token."""
    (best,) = driver.complete(0, tokens[:10], greedy(10), 1)
    banned = replace(greedy(10), logit_bias=((best, -100.0),))
    assert driver.complete(1, tokens[:10], banned, 1) != [best]
    forced = replace(greedy(10), logit_bias=((tokens[5], 100.0),))
    assert driver.complete(2, tokens[:10], forced, 3) == [tokens[5]] * 3


def test_penalties_count_the_completion_only(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against penalties that are not applied, or that count the prompt as completion."""
    said = tokens[40]
    text = (*tokens[:10], said)
    driver.run(operations=[Open(0, replace(greedy(12), prompt_logprobs=0))])
    before = driver.feed(0, 0, text)
    after = driver.feed(0, 11, (said,), wants_token=False)
    assert before.logprob is not None
    gap = before.logprob.top[0][1] - after.prompt_logprobs[0].logprob
    assert gap > 0.0, "the test needs a token that is not the best"
    # Biased to be the best by one, it stays so unless a penalty of two counts it as said.
    for prompt_count, is_repeated in ((11, True), (10, False)):
        sampling = Sampling(
            seed=0, prompt_count=prompt_count, logit_bias=((said, gap + 1.0),), presence_penalty=2.0
        )
        driver.run(operations=[Release(1), Open(1, sampling)])
        assert (driver.feed(1, 0, text).token == said) == is_repeated
