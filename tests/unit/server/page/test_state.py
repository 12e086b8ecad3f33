"""What the page is told, where many pages are open or there are many slots."""

import asyncio
import json
from concurrent.futures import Future

import pytest

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.config import ServeSettings
from jitney.core.request import RequestId
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import Detail, SlotState, SlotView
from jitney.engine.engine import Engine
from jitney.engine.request_factory import RequestFactory
from jitney.server import limits
from jitney.server.observe.monitor import Monitor
from jitney.server.observe.recorder import EVERYONE
from jitney.server.page.state import TAIL_CHARACTERS, PageState
from jitney.server.service import Service
from tests.clock_for_tests import HandClock
from tests.unit.server.observe.records_for_tests import accepted

PAGES = 20


def page_and_engine() -> tuple[PageState, Engine]:
    """The clock stands, so what was seen stays fresh."""
    backend = FakeBackend(FakeSettings())
    engine = Engine(backend, SchedulerSettings(model_len_max=100, max_num_seqs=4))
    request_factory = RequestFactory(backend, 100, lambda: 0)
    service = Service(engine, request_factory, None, ServeSettings(served_model_name=("tiny",)))
    return PageState(service, Monitor(engine, "tiny", clock=HandClock())), engine


def page_of_ended_engine() -> PageState:
    """Nobody waits for a look at it."""
    page, engine = page_and_engine()
    engine.start()
    engine.close(drain_s=0)
    return page


def test_one_state_is_made_in_a_round_of_the_loop() -> None:
    """Guards everyone who streams: of hundreds of slots, each takes milliseconds to tell."""
    page = page_of_ended_engine()

    async def poll() -> int:
        rounds = 0

        async def count() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await asyncio.gather(*(page.state(EVERYONE, 0, wants_requests=True) for _ in range(PAGES)))
        counting.cancel()
        return rounds

    assert asyncio.run(poll()) >= PAGES


def test_however_many_ask_for_slots_the_engine_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the tick against whoever polls: a look is answered between two of them."""
    page, engine = page_and_engine()
    looks: list[int] = []
    look = engine.look

    def counted(characters_max: int) -> Future[Detail]:
        looks.append(characters_max)
        return look(characters_max)

    monkeypatch.setattr(engine, "look", counted)
    engine.start()

    async def ask() -> bytes:
        detail = await page.look()
        assert detail is not None
        return await page.slots(detail, EVERYONE)

    async def poll() -> list[bytes]:
        return await asyncio.gather(*(ask() for _ in range(PAGES)))

    try:
        replies = asyncio.run(poll())
    finally:
        engine.close(drain_s=0)
    assert len(looks) == 1
    (reply,) = set(replies)
    idle = {"id_task": -1, "n_ctx": 100, "speculative": False, "is_processing": False}
    shown = {"jitney": {"state": "idle", "tokens": 0}}
    assert json.loads(reply) == [{"id": number, **idle, **shown} for number in range(4)]


def test_the_text_of_all_slots_together_is_bounded() -> None:
    """Guards the size of what is told: with many slots each shows the end of its text only."""
    page = page_of_ended_engine()
    for count in (1, 16, 512):
        names = [RequestId(str(number)) for number in range(count)]
        slots = tuple(
            SlotView(number, SlotState.GENERATING, name, 0, 5) for number, name in enumerate(names)
        )
        text = "x" * (TAIL_CHARACTERS - 1) + "y"
        detail = Detail(0.0, slots, (), (), dict.fromkeys(names, (text,)))
        rows = page._pane_rows(detail, EVERYONE, count)
        texts = [str(row["text"]) for row in rows if isinstance(row, dict)]
        assert len(texts) == count
        assert all(each.endswith("y") for each in texts)
        assert sum(map(len, texts)) == min(limits.PAGE_TEXT_CHARACTERS, count * TAIL_CHARACTERS)


def test_a_moved_request_is_prefilled_up_to_the_tokens_that_it_had() -> None:
    """Guards "prefill 80 of 39": what it made elsewhere is computed again with its prompt."""
    page = page_of_ended_engine()
    name = RequestId("a")
    page._recorder.take(accepted(0.0, name, 39))
    view = SlotView(0, SlotState.PREFILLING, name, 0, 80, None, 90)
    detail = Detail(0.0, (view,), (), (), {name: ("",)})
    (pane,) = page._pane_rows(detail, EVERYONE, 1)
    assert isinstance(pane, dict)
    assert (pane["tokens"], pane["known"], pane["made"]) == (80, 90, 51)
    row = page._slot_row(0, view, EVERYONE, None)
    assert row["jitney"] == {"state": "prefilling", "tokens": 80, "known": 90}
    assert (row["n_prompt_tokens"], row["n_prompt_tokens_processed"]) == (39, 39)
    assert row["next_token"] == [{"has_next_token": True, "n_remain": 13, "n_decoded": 51}]
