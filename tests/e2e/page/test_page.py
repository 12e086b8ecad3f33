"""The page in a real browser, while requests run: chat, slots, timeline, keys, colours, phone.

Skipped where there is no Chromium. Nothing here asserts how fast anything is.
"""

import contextlib
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest

pytest.importorskip("playwright", reason="playwright is not installed")

from playwright.sync_api import Page, Request, expect

from jitney.backends.fake.backend import FakeSettings
from jitney.config import Key
from tests.e2e.page.browser import CHROMIUM, PHONE, WAIT_MS, Open, callers
from tests.e2e.server.harness import MODEL, Running, World, running
from tests.e2e.server.pace import Pace

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

SLOW = FakeSettings(slots=32, eos_period=0, kv_tokens=8192, tick_s=0.01, sleeps=True)


@pytest.fixture
def server() -> Iterator[Running]:
    """A server whose ticks take long enough to be watched."""
    with running(World(backend=SLOW, sequences=4)) as one:
        yield one


@pytest.fixture
def paced() -> Iterator[tuple[Running, Pace]]:
    """A server whose answers last until they may hurry."""
    pace = Pace()
    with running(World(wrap=pace.wrap, sequences=4)) as one:
        yield one, pace


def load(server: Running, count: int, **headers: str) -> AbstractContextManager[None]:
    """Several callers, one request after another, until the block is left."""

    def ask(number: int) -> None:
        prompt = "A system prompt that they share. " * 6 + f"Caller {number}."
        body = {"prompt": prompt, "max_tokens": 60}
        server.post("/v1/completions", body, **headers).raise_for_status()

    return callers(count, ask)


def send(page: Page, text: str) -> None:
    page.fill("#chat-input", text)
    page.press("#chat-input", "Enter")


def test_the_page_shows_slots_queue_and_ticks_while_requests_run(
    server: Running, open_page: Open
) -> None:
    """Guards the live view: what runs is seen running."""
    with load(server, 7):
        page = open_page(server)
        expect(page.locator(".slot-row").first).to_be_visible()
        expect(page.locator("#slots-note")).to_contain_text("4 of 4 run")
        expect(page.locator(".queue-row").first).to_contain_text("every slot is taken")
        before = page.locator("#batch-note").inner_text()
        expect(page.locator("#batch-note")).not_to_have_text(before)
        tail = page.locator(".tail").first
        seen = tail.inner_text()
        expect(tail).not_to_have_text(seen)
        expect(page.locator("#memory-note")).to_contain_text("sharing saves")
        expect(page.locator("#l-gap td").first).to_contain_text("ms")
        expect(page.locator("#health")).to_have_attribute("data-level", "good")


def test_the_page_tells_what_a_batch_costs_and_where_the_time_went(
    server: Running, open_page: Open
) -> None:
    """Guards T(B) = C + B c and the shares of time, which stand in no drawing."""
    page = open_page(server)
    expect(page.locator("#batch-cost")).to_contain_text("0 % prefill, 0 % decode, 100 % idle")
    expect(page.locator("#batch-cost")).not_to_contain_text("T(B)")
    with load(server, 3):
        expect(page.locator("#batch-cost")).to_have_text(
            re.compile(
                r"^T\(B\) = \d+\.\d ms \+ B \S -?\d+\.\d\d ms for a batch of B decodes\. "
                r"Time since the start: \d+ % prefill, \d+ % decode, \d+ % idle\.$"
            )
        )


def test_a_chat_streams_an_answer_and_explains_it(
    paced: tuple[Running, Pace], open_page: Open
) -> None:
    """Guards the playground, from a typed message to the words about its own request."""
    server, pace = paced
    page = open_page(server)
    expect(page.locator("#model")).to_contain_text(MODEL)
    page.locator(".parameters summary").click()
    page.fill("#p-system", "You are brief.")
    page.fill("#p-max_tokens", "400")
    page.fill("#p-seed", "7")
    send(page, "What is a jitney?")
    expect(page.locator("#chat-stop")).to_be_enabled()
    expect(page.locator(".said.user")).to_have_text("What is a jitney?")
    pace.may_hurry.set()
    expect(page.locator(".why")).to_contain_text("generated 400 tokens")
    expect(page.locator("#chat-figures")).to_contain_text("400 tokens")
    expect(page.locator("#chat-figures")).to_contain_text("tok/s")
    assert page.locator(".said.assistant").inner_text().strip()
    expect(page.locator("#chat-send")).to_be_enabled()


def test_stop_ends_an_answer_and_frees_its_slot(server: Running, open_page: Open) -> None:
    """Guards the stop button: the engine forgets what nobody waits for."""
    page = open_page(server)
    page.locator(".parameters summary").click()
    page.fill("#p-max_tokens", "3000")
    send(page, "Go on and on.")
    expect(page.locator(".said.assistant")).not_to_be_empty()
    page.click("#chat-stop")
    expect(page.locator(".why")).to_contain_text("it was cancelled")
    server.check_idle()


def sent(page: Page) -> list[Any]:
    """Collects the messages of each call that the playground makes."""
    calls: list[Any] = []

    def note(request: Request) -> None:
        if request.url.endswith("/v1/chat/completions"):
            assert request.post_data_json is not None
            calls.append(request.post_data_json["messages"])

    page.on("request", note)
    return calls


def test_clear_during_an_answer_begins_an_empty_conversation(
    server: Running, open_page: Open
) -> None:
    """Guards a new conversation against what was still being said in the old one."""
    page = open_page(server)
    calls = sent(page)
    page.locator(".parameters summary").click()
    page.fill("#p-max_tokens", "3000")
    send(page, "Go on and on.")
    expect(page.locator(".said.assistant")).not_to_be_empty()
    page.click("#chat-clear")
    expect(page.locator("#talk-empty")).to_be_visible()
    page.fill("#p-max_tokens", "10")
    send(page, "Again.")
    expect(page.locator(".why")).to_contain_text("generated 10 tokens")
    expect(page.locator("#talk-empty")).to_have_count(0)
    expect(page.locator("#talk > *")).to_have_count(3)
    assert calls[1] == [{"role": "user", "content": "Again."}]
    # Cleared and begun a second time, when the words for an empty one were taken away before.
    page.click("#chat-clear")
    expect(page.locator("#talk > *")).to_have_count(1)
    send(page, "Once more.")
    expect(page.locator("#talk-empty")).to_have_count(0)


def test_a_question_without_an_answer_is_no_turn(server: Running, open_page: Open) -> None:
    """Guards templates that want turns to alternate: what was refused is taken back."""
    page = open_page(server)
    calls = sent(page)
    page.locator(".parameters summary").click()
    page.fill("#p-max_tokens", "5")
    page.fill("#p-temperature", "9")
    send(page, "Too hot?")
    expect(page.locator(".said.wrong")).to_contain_text("temperature")
    expect(page.locator("#chat-input")).to_have_value("Too hot?")
    page.fill("#p-temperature", "0.5")
    send(page, "Better?")
    expect(page.locator(".why")).to_contain_text("generated 5 tokens")
    assert calls[1] == [{"role": "user", "content": "Better?"}]


def test_completions_of_one_request_wait_in_rows_of_their_own(
    paced: tuple[Running, Pace], open_page: Open
) -> None:
    """Guards the queue against rows that stay when what they showed has gone."""
    server, pace = paced
    page = open_page(server)
    body = {"prompt": "hello", "max_tokens": 800, "n": 4}

    def ask() -> None:
        # On a starved machine the answer may take longer than a client waits.
        with contextlib.suppress(httpx.TimeoutException):
            server.post("/v1/completions", body)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    expect(page.locator(".queue-row")).to_have_count(8)
    before = page.locator("#batch-note").inner_text()
    expect(page.locator("#batch-note")).not_to_have_text(before)
    expect(page.locator(".queue-row")).to_have_count(8)
    pace.may_hurry.set()
    for thread in threads:
        thread.join(WAIT_MS / 1e3)
    expect(page.locator(".queue-row")).to_have_count(0)


def test_a_drain_is_shown_in_words(server: Running, open_page: Open) -> None:
    """Guards the sight of a restart: what /ready says is what the page says."""
    page = open_page(server)
    expect(page.locator("#health")).to_have_attribute("data-level", "good")
    server.service.drain()
    expect(page.locator("#health")).to_have_attribute("data-level", "warn")
    reason = server.get("/ready").json()["reason"]
    expect(page.locator("#health-words")).to_have_text(reason)


def test_a_request_opens_into_its_timeline(server: Running, open_page: Open) -> None:
    """Guards the answer to why one request took its time, by keyboard too."""
    with server.client() as client:
        client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 5})
    page = open_page(server)
    row = page.locator(".request-row").first
    expect(row.locator(".words")).to_contain_text("generated 5 tokens")
    button = row.get_by_role("button")
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(row.locator(".moments")).to_contain_text("first token")
    expect(row.locator(".facts")).to_contain_text("Generated")
    assert row.locator(".bar span").count() >= 2


def test_text_of_strangers_is_shown_as_text(server: Running, open_page: Open) -> None:
    """Guards against markup in prompts, answers and ids that becomes part of the page."""
    page = open_page(server)
    hostile = "<img src=x onerror=\"document.title='gone'\"><script>document.title='gone'</script>"
    send(page, hostile)
    expect(page.locator(".said.user")).to_have_text(hostile)
    expect(page.locator(".why")).to_be_visible()
    assert page.locator(".said img, .said script").count() == 0
    assert page.title() == "jitney"


def test_with_keys_the_page_asks_for_one_and_keeps_it(open_page: Open) -> None:
    """Guards the way in: nothing is shown without a key, and a wrong one is told."""
    keys = (Key(name="one", secret="first-key"), Key(name="two", secret="second-key"))
    with running(World(backend=SLOW, keys=keys)) as server:
        page = open_page(server)
        expect(page.locator("#key-dialog")).to_be_visible()
        page.fill("#key-input", "no-such-key")
        page.press("#key-input", "Enter")
        expect(page.locator("#key-wrong")).to_have_text("That key is not known here.")
        page.fill("#key-input", "first-key")
        page.press("#key-input", "Enter")
        expect(page.locator("#health")).to_have_attribute("data-level", "good")
        page.reload()
        expect(page.locator("#health")).to_have_attribute("data-level", "good")
        expect(page.locator("#key-dialog")).to_be_hidden()
        page.close()  # before its server: a page that is left alone complains


def test_another_keys_text_is_not_shown(open_page: Open) -> None:
    """Guards tenants against each other: that something runs may be seen, what it says may not."""
    keys = (Key(name="one", secret="first-key"), Key(name="two", secret="second-key"))
    with (
        running(World(backend=SLOW, keys=keys)) as server,
        load(server, 2, authorization="Bearer second-key"),
    ):
        page = open_page(server)
        page.fill("#key-input", "first-key")
        page.press("#key-input", "Enter")
        expect(page.locator(".tail").first).to_have_text("its text is not shown")
        expect(page.locator(".slot-row .id").first).to_have_text("another key's request")
        expect(page.locator(".empty")).to_have_text(["Nobody waits.", "No request yet."])
        send(page, "Mine?")
        expect(page.locator(".tail:not(.private)").first).to_be_visible()
        page.close()


def test_colours_follow_the_system_until_a_person_chooses(server: Running, open_page: Open) -> None:
    """Guards both palettes, and that a choice is remembered."""
    paper = "getComputedStyle(document.body).backgroundColor"
    page = open_page(server, color_scheme="dark")
    dark = page.evaluate(paper)
    assert dark != open_page(server, color_scheme="light").evaluate(paper)
    page.click("#theme-button")
    expect(page.locator("#theme-button")).to_have_text("Light")
    assert page.evaluate(paper) != dark
    page.reload()
    expect(page.locator("#theme-button")).to_have_text("Light")


def test_on_a_phone_nothing_is_wider_than_the_screen(server: Running, open_page: Open) -> None:
    """Guards small screens: parts stand below each other, and the chat has a place of its own."""
    with load(server, 3):
        page = open_page(server, viewport=PHONE)
        expect(page.locator(".slot-row").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        expect(page.locator("#chat")).to_be_hidden()
        page.get_by_role("button", name="Chat", exact=True).click()
        expect(page.locator("#chat-input")).to_be_visible()
        expect(page.locator("#batch")).to_be_hidden()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_long_latencies_are_seen_whole(server: Running, open_page: Open) -> None:
    """Guards the last column: under load, p99 is what people came for."""
    page = open_page(server)
    expect(page.locator("#model")).to_contain_text(MODEL)
    for width in (390, 1180, 1280, 1340, 1360, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        hidden_px = page.evaluate(
            """() => {
              const cells = [...document.querySelectorAll(".latency tbody td")];
              for (const cell of cells) cell.textContent = "59 min 59 s";
              const edge = document.querySelector(".figure.wide").getBoundingClientRect().right;
              const figures = document.querySelector(".figures").getBoundingClientRect().right;
              const right = Math.max(...cells.map((cell) => cell.getBoundingClientRect().right));
              const wide = document.body.scrollWidth - innerWidth;
              return Math.max(right - edge, right - figures, wide);
            }"""
        )
        assert hidden_px <= 0, width


def test_one_sequence_is_one_and_cached_prefixes_are_counted(
    server: Running, open_page: Open
) -> None:
    """Guards the words about a lone request, and those about slots that do not run."""
    server.complete("a prefix that stays " * 4, max_tokens=2).raise_for_status()
    page = open_page(server)
    expect(page.locator("#batch-note")).to_contain_text(": 1 sequence, ")
    expect(page.locator("#slots-note")).to_have_text("0 of 4 run, prefixes cached in 1 more")
