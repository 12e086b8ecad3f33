"""Fixtures of the tests of the page: a browser, where playwright is installed."""

from contextlib import suppress

with suppress(ModuleNotFoundError):
    from tests.e2e.page.browser import browser as browser
    from tests.e2e.page.browser import open_page as open_page
