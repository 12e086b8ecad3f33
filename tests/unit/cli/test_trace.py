"""Tests of `jitney.cli.trace`: which key goes to which server."""

import pytest

from jitney.cli.trace import fetch_trace, server_key
from jitney.errors import ConfigError

HERE = "http://127.0.0.1:8000"


@pytest.mark.parametrize("key", ["", "sk-123\n", "sk\x00-123", "sk-\u00e4123", "sekr\u20act-123"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Guards the header, and whoever reads the message; it says which of the two is wrong."""
    monkeypatch.setenv("JITNEY_API_KEY", "in\nthe environment")
    for given, source in ((key, "--api-key"), (None, "JITNEY_API_KEY")):
        with pytest.raises(ConfigError, match=f"^{source} is empty or has") as caught:
            server_key(given, HERE)
        assert "123" not in str(caught.value)
        assert "environment" not in str(caught.value)


def test_a_key_that_can_be_sent_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards calls without a key, too."""
    monkeypatch.delenv("JITNEY_API_KEY", raising=False)
    assert server_key(None, HERE) is None
    assert server_key("sk-123", HERE) == "sk-123"


@pytest.mark.parametrize("url", ["http://[::1", "ftp://127.0.0.1", "here"])
def test_what_is_no_address_is_a_sentence(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Guards a slip of the pen, with a key and without."""
    monkeypatch.setenv("JITNEY_API_KEY", "sk-123")
    for ask in (lambda: server_key(None, url), lambda: fetch_trace(url, None)):
        with pytest.raises(ConfigError, match="expected an address such as"):
            ask()
