"""A fault harms only what it must: a failed batch is mended by a reset, and a dead process too."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from jitney.backends.kinds import load_process
from jitney.backends.process.client import ProcessBackend
from jitney.backends.process.messages import Plain
from jitney.core.batch import Copy, Entry, Open, Restore
from jitney.core.params import Constraint, ConstraintKind
from jitney.errors import BackendCrashed, BackendFailed, ModelError
from tests.backends_for_tests import needs_installed
from tests.conformance.driver import Driver, greedy

SMALL: dict[str, Plain] = {"slots": 2, "kv_tokens": 64, "max_num_batched_tokens": 32, "threads": 1}


def test_a_failed_batch_leaves_the_backend_usable(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against a bad slot that takes the backend down for everybody."""
    driver.run(operations=[Open(0, greedy(10))])
    expected = driver.observe(0, tokens[:12], 10)
    with pytest.raises(BackendFailed):
        driver.run([Entry(driver.backend.traits.slots_max, 0, tokens[:4], True)])
    driver.backend.reset()
    driver.run(operations=[Open(0, greedy(10))])
    driver.assert_alike(driver.observe(0, tokens[:12], 10), expected)


def test_what_lies_behind_a_fault_harms_nobody_else(
    driver: Driver, tokens: tuple[int, ...]
) -> None:
    """Guards the others in a batch that was planned before a row of the last one had its fault."""
    stuck = replace(
        greedy(8),
        constraint=Constraint(ConstraintKind.REGEX, "x"),
        min_tokens=20,
        end_tokens=driver.backend.vocabulary.eos_tokens,
    )
    driver.backend.prepare(Constraint(ConstraintKind.REGEX, "x"))
    begins = [Entry(slot, 0, tokens[:8], wants_token=True) for slot in (0, 1)]
    outcomes = [driver.run(begins, [Open(0, stuck), Open(1, greedy(8))])]
    for step in range(3):
        goes_on = [Entry(slot, 8 + step, (), wants_token=True, continues=True) for slot in (0, 1)]
        outcomes.append(driver.run(goes_on))
    faults = [outcome.samples[0].fault for outcome in outcomes]
    assert faults[0] is None
    assert all(faults[1:])
    assert all(outcome.samples[1].token is not None for outcome in outcomes)


def test_restoring_nothing_fails_the_batch(driver: Driver) -> None:
    """Guards against a lost ticket that turns into an empty sequence."""
    with pytest.raises(BackendFailed):
        driver.run(operations=[Restore(99, 0)])


def test_reset_forgets_every_slot(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against memory that survives a reset and is then added to."""
    driver.run(operations=[Open(0, greedy(10))])
    expected = driver.observe(0, tokens[:12], 10)
    driver.run(operations=[Copy(0, slot, 12) for slot in range(1, 8)])
    driver.backend.reset()
    driver.run(operations=[Open(slot, greedy(10)) for slot in range(8)])
    driver.assert_alike(driver.observe(5, tokens[:12], 10), expected)


def test_a_killed_process_is_replaced(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards against a crash that is not noticed, not told, or not mended."""
    backend = driver.backend
    if not isinstance(backend, ProcessBackend):
        pytest.skip("this one has no process of its own")
    driver.run(operations=[Open(0, greedy(10))])
    expected = driver.observe(0, tokens[:12], 10)
    os.kill(backend.pid, signal.SIGKILL)
    with pytest.raises(BackendCrashed, match="signal 9") as caught:
        driver.feed(0, 12, tokens[12:14])
    assert caught.value.signal == signal.SIGKILL
    backend.reset()
    driver.run(operations=[Open(0, greedy(10))])
    driver.assert_alike(driver.observe(0, tokens[:12], 10), expected)


def test_encode_survives_a_killed_process(driver: Driver, tokens: tuple[int, ...]) -> None:
    """Guards requests that come while there is no process: they wait for the next one."""
    backend = driver.backend
    if not isinstance(backend, ProcessBackend):
        pytest.skip("this one has no process of its own")
    expected = backend.encode([("a jitney is a small bus", False)])
    driver.feed(0, 0, tokens[:8], wants_token=False)
    os.kill(backend.pid, signal.SIGKILL)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(backend.encode, [("a jitney is a small bus", False)])
        with pytest.raises(BackendCrashed, match="signal 9"):
            backend.check()
        backend.reset()
        assert answer.result(60.0) == expected
    driver.feed(0, 0, tokens[:8], wants_token=False)


def test_encoding_joins_to_the_text(driver: Driver) -> None:
    """Guards against a tokeniser that loses characters on the way."""
    text = "Grüße, 世界! 2 + 2 = 4\n"
    tokens = driver.backend.encode([(text, False)])
    joined = b"".join(driver.backend.vocabulary.pieces[token] for token in tokens)
    assert joined.decode().strip(" ") == text


def test_a_missing_model_is_told_across_the_process(tiny_gguf: Path) -> None:
    """Guards against a wrong path that looks like a crash."""
    needs_installed("llamacpp")
    with pytest.raises(ModelError, match=r"none\.gguf"):
        load_process("llamacpp", SMALL | {"model": str(tiny_gguf.parent / "none.gguf")})
