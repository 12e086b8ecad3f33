"""A browser for the tests of the page: the fixtures `browser` and `open_page`, and `callers`.

Needs playwright.
"""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WAIT_MS = 90_000
DESK: ViewportSize = {"width": 1360, "height": 1500}
PHONE: ViewportSize = {"width": 390, "height": 844}
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

Open = Callable[..., Page]


class Server(Protocol):
    """A server with a page."""

    @property
    def url(self) -> str: ...


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of a module."""
    # A page's own limit does not hold for these.
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens pages, and fails the test when one complains on its console."""
    complaints: list[str] = []
    with ExitStack() as stack:
        # Any: whatever a browser context takes
        def go(server: Server, **options: Any) -> Page:
            context = browser.new_context(**{"viewport": DESK, **options})
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(WAIT_MS)
            page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(server.url)
            return page

        yield go
    # Refusals that a test asks for are complained of as well.
    assert [each for each in complaints if "a status of 40" not in each] == []


@contextmanager
def callers(count: int, ask: Callable[[int], object]) -> Iterator[None]:
    """Several callers, each with one request after another, until the block is left."""
    stopping = threading.Event()

    def go_on(number: int) -> None:
        while not stopping.is_set():
            ask(number)

    threads = [threading.Thread(target=go_on, args=(at,), daemon=True) for at in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join(WAIT_MS / 1e3)
