"""The page of a server over several replicas, in a real browser: panes, prefixes, moves.

Skipped where there is no Chromium. Nothing here asserts how fast anything is.
"""

import re
from contextlib import AbstractContextManager
from typing import Any

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")

from playwright.sync_api import expect

from jitney.config import Key
from tests.e2e.page.browser import CHROMIUM, PHONE, Open, callers
from tests.e2e.page.fleet_server import FleetServer, fleet_server

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

PROMPTS = ("You are brief. Answer in one sentence only. " * 3, "Translate into French. " * 5)


def load(server: FleetServer, count: int, **headers: str) -> AbstractContextManager[None]:
    """Several callers, one request after another, until the block is left."""

    def ask(number: int) -> None:
        server.ask(f"{PROMPTS[number % 2]}Caller {number}.", 80, **headers)

    return callers(count, ask)


def test_replicas_stand_side_by_side_and_moves_are_seen(open_page: Open) -> None:
    """Guards the live view of a cluster: panes, prefixes, and what happens when one dies."""
    with fleet_server(3) as server, load(server, 11):
        page = open_page(server)
        panes = page.locator(".replica")
        expect(panes).to_have_count(3)
        expect(page.locator("#replicas-note")).to_have_text("3 connected")
        expect(page.locator("#replicas")).to_contain_text("3 of 3 run")
        expect(page.locator(".replica .slot-row").first).to_contain_text("tokens")
        tail = page.locator(".replica .tail").first
        seen = tail.inner_text()
        expect(tail).not_to_have_text(seen)
        expect(page.locator(".queue-row").first).to_contain_text(re.compile(r" on r\d$"))
        expect(page.locator("#prefixes tbody tr")).to_have_count(2)
        expect(page.locator("#prefixes .held").first).to_contain_text("tokens")
        expect(page.locator("#f-rate")).not_to_have_text(re.compile(r"^0 "))
        expect(page.locator("#batch-card")).to_be_hidden()
        expect(page.locator("#slots-card")).to_be_hidden()
        expect(page.locator("#moves")).to_have_text("No request was moved.")
        server.kill("r1")
        expect(page.locator("#replicas-note")).to_have_text("2 connected, 1 gone since the start")
        expect(page.locator("#moves .note").first).to_contain_text(
            re.compile(r"from r1 to r[23] after \d+ tokens?, .* without a replica")
        )
        moved = page.locator(".request-row", has_text="moved once to another replica")
        moved.first.get_by_role("button").click()
        expect(page.locator(".moments").first).to_contain_text("moved from r1 to")
        expect(page.locator(".facts").first).to_contain_text(re.compile(r"Replicar[23]"))
        expect(page.locator(".bar .moved").first).to_be_attached()
        assert server.add() == "r4"
        expect(panes).to_have_count(3)
        expect(page.locator("#health")).to_have_attribute("data-level", "good")
        page.close()  # before its server: a page that is left alone complains


def test_slots_of_all_replicas_are_numbered_through() -> None:
    """Guards monitoring programs of llama-server: every slot once, and who runs there."""
    with fleet_server(2) as server, load(server, 4):
        rows: list[Any] = []
        while len({each["jitney"]["replica"] for each in rows if each["is_processing"]}) < 2:
            rows = server.get("/slots")
        assert len({each["id"] for each in rows}) == len(rows) == 6
        assert {each["jitney"]["replica"] for each in rows} == {"r1", "r2"}
        busy = [each for each in rows if each["is_processing"]]
        assert all(str(each["id_task"]).startswith("cmpl-") for each in busy)
        assert all(each["n_prompt_tokens"] > 64 for each in busy)


def test_another_keys_requests_have_no_name_on_any_replica(open_page: Open) -> None:
    """Guards tenants against each other, over all replicas."""
    keys = (Key(name="one", secret="first-key"), Key(name="two", secret="second-key"))
    with fleet_server(2, keys) as server, load(server, 6, authorization="Bearer second-key"):
        page = open_page(server)
        page.fill("#key-input", "first-key")
        page.press("#key-input", "Enter")
        expect(page.locator(".replica")).to_have_count(2)
        expect(page.locator(".replica .tail").first).to_have_text("its text is not shown")
        expect(page.locator(".replica .slot-row .id").first).to_have_text("another key's request")
        server.kill("r1")
        expect(page.locator("#moves .id").first).to_have_text("another key's request")
        expect(page.locator("#requests")).to_have_text("No request yet.")
        page.close()


def test_on_a_phone_replicas_stand_below_each_other(open_page: Open) -> None:
    """Guards small screens."""
    with fleet_server(2) as server, load(server, 5):
        page = open_page(server, viewport=PHONE)
        expect(page.locator(".replica")).to_have_count(2)
        expect(page.locator("#prefixes tbody tr").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        page.close()
