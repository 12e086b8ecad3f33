"""Prefixes on disk, on every backend that can store them: as if they had just been computed."""

import os
import signal
from itertools import count
from threading import Event

import pytest

from jitney.backends.process.client import ProcessBackend
from jitney.backends.shared.prefix_files import CHUNK_TOKENS
from jitney.core.backend import Fetch, Fetched, StoringBackend
from jitney.core.batch import Open, Release, Restore, Store, Truncate
from jitney.errors import BackendCrashed, BackendFailed
from tests.conformance.driver import Driver, greedy

TICKET = 7
PROMPT = CHUNK_TOKENS + 12
WAITS_MAX = 400
SCOPES = map(str, count())
"""One for each test: what another one stored is not there."""


@pytest.fixture
def storing(driver: Driver) -> Driver:
    if not driver.backend.traits.can_store:
        pytest.skip("this backend stores no prefixes")
    return driver


@pytest.fixture
def text(tokens: tuple[int, ...]) -> tuple[int, ...]:
    """A prompt and some of an answer."""
    return (*tokens, *tokens[:30])


def fetched(driver: Driver, tokens: tuple[int, ...], scope: str, *, waits: int = 1) -> Fetched:
    """What the disk has, now or soon."""
    assert isinstance(driver.backend, StoringBackend)
    asked = Fetch(ticket=TICKET, scope=scope, tokens=tokens, least=CHUNK_TOKENS, held_max=512)
    for _ in range(waits):
        found = driver.backend.fetch(asked)
        if found.length:
            return found
        Event().wait(0.05)
    return found


def stored(driver: Driver, text: tuple[int, ...]) -> str:
    """Compute a prompt and store it; its scope."""
    scope = next(SCOPES)
    driver.run(operations=[Open(0, greedy(PROMPT))])
    driver.feed(0, 0, text[:64], wants_token=False)
    driver.feed(0, 64, text[64:PROMPT])
    driver.run(operations=[Store(0, scope, PROMPT)])
    found = fetched(driver, text[:PROMPT], scope, waits=WAITS_MAX)
    assert found == Fetched(TICKET, CHUNK_TOKENS, PROMPT)
    return scope


def test_stored_and_fetched_equals_uninterrupted(storing: Driver, text: tuple[int, ...]) -> None:
    """Guards equal texts, whether a prompt was computed or read."""
    storing.run(operations=[Open(0, greedy(PROMPT))])
    expected = storing.observe(0, text, PROMPT)
    storing.backend.reset()
    scope = stored(storing, text)
    storing.backend.reset()
    found = fetched(storing, text[:PROMPT], scope)
    assert found == Fetched(TICKET, CHUNK_TOKENS, PROMPT)
    storing.run(operations=[Restore(TICKET, 3), Truncate(3, found.length), Open(3, greedy(PROMPT))])
    seen = storing.observe(3, text, PROMPT, stored=found.length)
    storing.assert_alike(seen, expected)


def test_fetched_for_another_end_equals_fresh(storing: Driver, text: tuple[int, ...]) -> None:
    """Guards a common beginning: what was cut off the end is not seen."""
    other = (*text[:CHUNK_TOKENS], *text[60:90])
    storing.run(operations=[Open(0, greedy(PROMPT))])
    expected = storing.observe(0, other, PROMPT)
    storing.backend.reset()
    scope = stored(storing, text)
    storing.backend.reset()
    found = fetched(storing, other[:PROMPT], scope)
    storing.run(operations=[Restore(TICKET, 1), Truncate(1, found.length), Open(1, greedy(PROMPT))])
    seen = storing.observe(1, other, PROMPT, stored=found.length)
    storing.assert_alike(seen, expected)


def test_another_scope_or_other_tokens_are_a_miss(storing: Driver, text: tuple[int, ...]) -> None:
    """Guards isolation."""
    scope = stored(storing, text)
    assert fetched(storing, text[:PROMPT], scope + "1") == Fetched(TICKET)
    assert fetched(storing, text[1 : PROMPT + 1], scope) == Fetched(TICKET)


def test_a_slot_may_go_right_after_it_was_stored(storing: Driver, text: tuple[int, ...]) -> None:
    """Guards what is written: a copy, and not the slot that somebody else uses by then."""
    scope = next(SCOPES)
    storing.run(operations=[Open(0, greedy(PROMPT))])
    expected = storing.observe(0, text, PROMPT)
    storing.backend.reset()
    storing.feed(0, 0, text[:PROMPT], wants_token=False)
    storing.run(operations=[Store(0, scope, PROMPT), Release(0)])
    storing.feed(0, 0, text[20:], wants_token=False)
    found = fetched(storing, text[:PROMPT], scope, waits=WAITS_MAX)
    storing.run(operations=[Restore(TICKET, 1), Truncate(1, found.length), Open(1, greedy(PROMPT))])
    storing.assert_alike(storing.observe(1, text, PROMPT, stored=found.length), expected)


def test_more_than_a_slot_holds_is_refused(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against what is stored before it is computed."""
    driver.feed(0, 0, tokens[:40], wants_token=False)
    for length in (0, 41):
        with pytest.raises(BackendFailed, match="Store of"):
            driver.run(operations=[Store(0, "scope", length)])
        driver.backend.reset()
        driver.feed(0, 0, tokens[:40], wants_token=False)


def test_without_a_disk_nothing_happens(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards backends that cannot store: the operation is harmless."""
    if driver.backend.traits.can_store:
        pytest.skip("this backend stores prefixes")
    driver.feed(0, 0, tokens[:40], wants_token=False)
    assert not driver.run(operations=[Store(0, "scope", 40)]).tokens


def test_a_process_that_was_killed_leaves_its_prefixes(
    storing: Driver, text: tuple[int, ...]
) -> None:
    """Guards the point of it: the next process starts warm."""
    backend = storing.backend
    if not isinstance(backend, ProcessBackend):
        pytest.skip("this backend has no process")
    scope = stored(storing, text)
    os.kill(backend.pid, signal.SIGKILL)
    with pytest.raises(BackendCrashed):
        fetched(storing, text[:PROMPT], scope)
    with pytest.raises(BackendCrashed):
        storing.run()
    backend.reset()
    assert fetched(storing, text[:PROMPT], scope) == Fetched(TICKET, CHUNK_TOKENS, PROMPT)
