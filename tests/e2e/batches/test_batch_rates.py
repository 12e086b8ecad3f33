"""A key with a rate of tokens: its batches stop after a day's worth of them, and nothing else."""

from pathlib import Path

import openai
import pytest
from openai import OpenAI

from jitney.config import Key
from jitney.server.batches import limits
from tests.e2e.batches.batch_client import (
    BATCH_S,
    ENDED,
    FIRST,
    OTHER,
    client_of,
    counts_of,
    custom_ids,
    ended,
    line,
    results,
)
from tests.e2e.batches.batch_client import submit as submit_lines
from tests.e2e.server.harness import Running, World, running, wait_until
from tests.e2e.server.pace import StillClock

DAY_S = 86_400.0
LINES = 40
LINE_TOKENS = len("complete c00") + 100
A_DAY = 1440
"""A token a minute."""


class PushedClock(StillClock):
    """It stands still until it is pushed."""

    def push(self, seconds: float) -> None:
        self._moment += seconds


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(limits, "ALLOWANCE_S", 0.05, raising=False)
    keys = (
        Key(name="first", secret=FIRST, tokens_per_minute=A_DAY / 1440),
        Key(name="other", secret=OTHER),
    )
    return World(jobs_dir=tmp_path / "jobs", keys=keys, clock=PushedClock())


def submit(client: OpenAI) -> str:
    work = [line(f"c{number:02}", max_tokens=100) for number in range(LINES)]
    return str(submit_lines(client, work).id)


def completed(client: OpenAI, batch_id: str) -> int:
    """How many lines are done, of a batch that has not ended."""
    batch = client.batches.retrieve(batch_id)
    assert batch.status not in ENDED, "it should wait"
    return counts_of(batch)[1]


def wait_until_used_up(server: Running, client: OpenAI, batch_id: str) -> None:
    """Until a key has used its day, none of its lines runs, and every answer is in the store."""
    assert server.batches is not None
    allowances = server.batches.allowances

    def is_used_up() -> bool:
        used = completed(client, batch_id) * LINE_TOKENS
        # Lines that run may use up the rest of a day, which they give back if they need less.
        is_kept = allowances.used() == {"first": used} and used >= A_DAY
        text = server.get("/metrics", authorization=f"Bearer {OTHER}").text
        still = ("jitney:jobs_keys_used_up 1.0", "jitney:jobs_lines_in_flight 0.0")
        return is_kept and all(each in text for each in still)

    wait_until(is_used_up, "the batch did not stop", BATCH_S)


def test_a_batch_stops_after_a_days_worth_and_goes_on_later(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards a rate that is a budget: a file of a million lines, or a restart, would pass it."""
    clock = world.clock
    assert isinstance(clock, PushedClock)
    with running(world) as server, client_of(server, FIRST) as first:
        batch_id = submit(first)
        wait_until_used_up(server, first, batch_id)
        count = completed(first, batch_id)
        assert A_DAY <= count * LINE_TOKENS < A_DAY + world.sequences * LINE_TOKENS
        with client_of(server, OTHER) as other:
            work = [line(f"c{number}") for number in range(100)]
            assert ended(other, submit_lines(other, work)).status == "completed"
        assert completed(first, batch_id) == count
        # Live calls have their own rate, of which nothing is used.
        assert first.completions.create(model="fake", prompt="a", max_tokens=2).choices
        with pytest.raises(openai.RateLimitError):
            first.completions.create(model="fake", prompt="a", max_tokens=2)
    waits = [each for each in caplog.messages if "batches of first wait" in each]
    assert len(waits) == 1, waits
    with running(world) as server, client_of(server, FIRST) as first:
        wait_until_used_up(server, first, batch_id)
        assert completed(first, batch_id) == count, "a restart is no new day"

        def is_over() -> bool:
            clock.push(DAY_S)
            return first.batches.retrieve(batch_id).status in ENDED

        wait_until(is_over, "the batch did not go on", BATCH_S)
        done = first.batches.retrieve(batch_id)
        assert done.status == "completed"
        names = [f"c{number:02}" for number in range(LINES)]
        assert custom_ids(results(first, done.output_file_id)) == names
