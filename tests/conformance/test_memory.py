"""What a slot holds decides the answer, and nothing else does.

Exact backends must give equal samples; others logprobs within the tolerance of the driver.
"""

import pytest

from jitney.core.batch import Copy, Discard, Entry, Open, Release, Restore, Sample, Save, Truncate
from jitney.errors import BackendFailed
from tests.conformance.driver import TOLERANCE, TOP, Driver, greedy, top_difference

PROMPT = 100


def alone(driver: Driver, tokens: tuple[int, ...], start: int = PROMPT) -> list[Sample]:
    """What slot 7 answers to these tokens with nothing else in memory; it is left empty."""
    driver.run(operations=[Open(7, greedy(start))])
    samples = driver.observe(7, tokens, start)
    driver.run(operations=[Release(7)])
    return samples


def test_another_context_is_not_alike(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards the comparison itself: one other token far back must be seen by it."""
    other = (tokens[1], *tokens[1:])
    found, expected = alone(driver, other), alone(driver, tokens)
    differences = []
    for one, two in zip(found, expected, strict=True):
        assert one.logprob is not None
        assert two.logprob is not None
        differences.append(top_difference(one.logprob, two.logprob))
    assert max(differences) > TOLERANCE


def test_batched_equals_alone(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against sequences that see each other in one batch."""
    expected = alone(driver, tokens[:16], 12)
    texts = [tokens[:16], *(tokens[16 * other : 16 * other + 16] for other in range(1, 5))]
    driver.run(operations=[Open(slot, greedy(12)) for slot in range(5)])
    found = [driver.run([Entry(slot, 0, texts[slot][:12], True) for slot in range(5)]).samples[0]]
    for position in range(12, 16):
        entries = [Entry(slot, position, (texts[slot][position],), True) for slot in range(5)]
        found.append(driver.run(entries).samples[0])
    driver.assert_alike(found, expected)


def test_prefill_beside_decode_equals_alone(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against a row that is sampled for the wrong entry when spans have unequal length."""
    expected = [*alone(driver, tokens[:41], 41), *alone(driver, tokens[50:71], 20)]
    driver.run(operations=[Open(0, greedy(41)), Open(1, greedy(20))])
    driver.run([Entry(0, 0, tokens[:9], False), Entry(1, 0, tokens[50:69], False)])
    first = driver.run([Entry(0, 9, tokens[9:20], False), Entry(1, 19, (tokens[69],), True)])
    second = driver.run([Entry(0, 20, tokens[20:41], True), Entry(1, 20, (tokens[70],), True)])
    assert first.samples[0] == Sample()
    driver.assert_alike([second.samples[0], first.samples[1], second.samples[1]], expected)


@pytest.mark.parametrize("span", [1, 7, 64])
def test_spans_equal_whole_prompt(driver: Driver, tokens: tuple[int, ...], span: int) -> None:
    """Guards against a span that is stored at the wrong position."""
    driver.run(operations=[Open(0, greedy(PROMPT)), Open(1, greedy(PROMPT))])
    whole = driver.observe(0, tokens, PROMPT, span=PROMPT)
    driver.assert_alike(driver.observe(1, tokens, PROMPT, span=span), whole)


@pytest.mark.parametrize("length", [1, 33, 64, PROMPT])
def test_copy_equals_recompute(driver: Driver, tokens: tuple[int, ...], length: int) -> None:
    """Guards against a copy that shares too much, too little, or something that changes."""
    expected = alone(driver, tokens)
    driver.run(operations=[Open(0, greedy(PROMPT)), Open(1, greedy(PROMPT))])
    if driver.backend.traits.rewinds:
        driver.observe(0, tokens, PROMPT)
    else:
        driver.feed(0, 0, tokens[:length], wants_token=False)
    driver.run(operations=[Copy(0, 1, length)])
    found = driver.observe(1, tokens, PROMPT, stored=length)
    driver.assert_alike(found, expected[-len(found) :])


def test_copies_grow_apart(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against a shared prefix that one of its holders writes into."""
    branch = (*tokens[:40], *tokens[70:80])
    expected, expected_branch = alone(driver, tokens[:50], 40), alone(driver, branch, 40)
    driver.run(operations=[Open(0, greedy(40)), Open(1, greedy(40))])
    driver.feed(0, 0, tokens[:39], wants_token=False)
    driver.run(operations=[Copy(0, 1, 39)])
    found, found_branch = [], []
    for position in range(39, 50):
        entries = [
            Entry(0, position, (tokens[position],), True),
            Entry(1, position, (branch[position],), True),
        ]
        one, two = driver.run(entries).samples
        found.append(one)
        found_branch.append(two)
    driver.assert_alike(found, expected)
    driver.assert_alike(found_branch, expected_branch)


def test_copy_outlives_its_source(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against a release that takes shared memory with it."""
    expected = alone(driver, tokens)
    driver.run(operations=[Open(0, greedy(PROMPT)), Open(1, greedy(PROMPT))])
    driver.feed(0, 0, tokens[:60], wants_token=False)
    driver.run(operations=[Copy(0, 1, 60), Release(0)])
    driver.feed(0, 0, tokens[64:], wants_token=False)
    driver.assert_alike(driver.observe(1, tokens, PROMPT, stored=60), expected)


def test_saved_and_restored_equals_uninterrupted(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against a save that loses tokens, or a restore into the wrong slot."""
    if not driver.backend.traits.can_save:
        pytest.skip("this backend does not save")
    expected = alone(driver, tokens)
    driver.run(operations=[Open(0, greedy(PROMPT))])
    driver.observe(0, tokens[:110], PROMPT)
    driver.run(operations=[Save(0, 5), Release(0), Open(0, greedy(10))])
    driver.observe(0, tokens[64:80], 10)
    driver.run(operations=[Open(3, greedy(PROMPT)), Restore(5, 3)])
    found = driver.observe(3, tokens, PROMPT, stored=110)
    driver.assert_alike(found, expected[-len(found) :])


@pytest.mark.parametrize("is_copied", [False, True], ids=["cut", "copied"])
def test_restored_and_cut_equals_fresh(
    driver: Driver, tokens: tuple[int, ...], is_copied: bool
) -> None:
    """Guards against a save that leaves out what only the whole sequence does not need: the tokens
    that a sliding window passed."""
    if not (driver.backend.traits.can_save and driver.backend.traits.rewinds):
        pytest.skip("this backend does not save, or its slots cannot be cut back")
    expected = alone(driver, tokens[:60], 50)
    driver.run(operations=[Open(0, greedy(50)), Open(1, greedy(50)), Open(2, greedy(50))])
    driver.feed(0, 0, tokens, wants_token=False)
    driver.run(operations=[Save(0, 5), Release(0), Restore(5, 1)])
    driver.run(operations=[Copy(1, 2, 40) if is_copied else Truncate(1, 40)])
    found = driver.observe(2 if is_copied else 1, tokens[:60], 50, stored=40)
    driver.assert_alike(found, expected)


def test_a_ticket_is_spent_once(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against tickets that stay, and hold memory for ever."""
    if not driver.backend.traits.can_save:
        pytest.skip("this backend does not save")
    driver.feed(0, 0, tokens[:20], wants_token=False)
    driver.run(operations=[Save(0, 5), Discard(5)])
    with pytest.raises(BackendFailed):
        driver.run(operations=[Restore(5, 1)])


@pytest.mark.parametrize("length", [0, 16, 50])
def test_truncated_then_other_tokens_equals_fresh(
    driver: Driver, tokens: tuple[int, ...], length: int
) -> None:
    """Guards against stale tokens behind a truncation."""
    if not driver.backend.traits.rewinds:
        pytest.skip("its slots cannot be cut back")
    other = (*tokens[:length], *tokens[90:120])
    expected = alone(driver, other, len(other) - 5)
    driver.run(operations=[Open(0, greedy(len(other) - 5))])
    driver.feed(0, 0, tokens[:64], wants_token=False)
    driver.run(operations=[Truncate(0, length)])
    driver.assert_alike(driver.observe(0, other, len(other) - 5, stored=length), expected)


@pytest.mark.parametrize("operation", [Truncate(0, 30), Copy(0, 1, 30)])
def test_a_state_is_whole(
    driver: Driver, tokens: tuple[int, ...], operation: Truncate | Copy
) -> None:
    """Guards against the state of more tokens that is taken for that of fewer."""
    if driver.backend.traits.rewinds:
        pytest.skip("its slots can be cut back")
    driver.feed(0, 0, tokens[:40], wants_token=False)
    with pytest.raises(BackendFailed, match="all of them or not at all"):
        driver.run(operations=[operation])


def test_released_slot_forgets(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against one sequence that reads what the last one left in its slot."""
    expected = alone(driver, tokens[:50], 40)
    driver.run(operations=[Open(0, greedy(40))])
    driver.observe(0, tokens[60:120], 50)
    driver.run(operations=[Release(0), Open(0, greedy(40))])
    driver.assert_alike(driver.observe(0, tokens[:50], 40), expected)


def test_continuing_equals_the_token_given(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against a batch planned ahead that goes on from another token."""
    driver.run(operations=[Open(0, greedy(30)), Open(1, greedy(30))])
    first = driver.feed(0, 0, tokens[:30])
    assert first.token is not None
    found = [driver.run([Entry(0, 30, (), True, continues=True)]).samples[0]]
    assert found[0].token is not None
    found.append(driver.run([Entry(0, 31, (), True, continues=True)]).samples[0])
    text = (*tokens[:30], first.token, found[0].token)
    driver.assert_alike([first, *found], driver.observe(1, text, 30))


def test_more_than_the_slots_in_turn(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against memory that is not given back: three times the budget passes through."""
    expected = alone(driver, tokens)
    rounds = 3 * driver.backend.traits.kv_tokens // len(tokens)
    for turn in range(rounds):
        slot = turn % driver.backend.traits.slots_max
        driver.run(operations=[Open(slot, greedy(PROMPT, logprobs=TOP))])
        found = driver.observe(slot, tokens[: PROMPT + 1], PROMPT)
        driver.run(operations=[Release(slot)])
    driver.assert_alike(found, expected[: len(found)])
