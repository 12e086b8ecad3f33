"""Who may reach a Ray that is started here, and who can read the token of one that is joined."""

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jitney.errors import ConfigError
from jitney_cluster.own_ray import closed_environment, warn_of_open_token


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home that others may look into, as those of tests are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        monkeypatch.setenv("HOME", made)
        yield Path(made)


def test_each_start_has_a_token_of_its_own_that_is_nowhere_written(home: Path) -> None:
    """Guards the server's user: Ray would write one token for ever, for all to read."""
    given = {"RAY_TMPDIR": str(home), "RAY_AUTH_TOKEN": " ", "RAY_AUTH_MODE": "disabled"}
    made = [closed_environment(given) for _ in range(2)]
    assert len({each["RAY_AUTH_TOKEN"] for each in made}) == 2
    assert {len(each["RAY_AUTH_TOKEN"]) for each in made} == {64}
    assert {each["RAY_AUTH_MODE"] for each in made} == {"token"}
    folders = [Path(each["RAY_TMPDIR"]) for each in made]
    assert sorted(home.iterdir()) == sorted(folders), "two servers of a user, side by side"
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
    assert [path for folder in folders for path in folder.rglob("*")] == []


def test_a_place_that_is_not_there_is_a_sentence(home: Path) -> None:
    """Guards a user's mistake in RAY_TMPDIR from ending in a traceback."""
    with pytest.raises(ConfigError, match=r"missing \(No such file or directory\); set RAY_TMPDIR"):
        closed_environment({"RAY_TMPDIR": str(home / "missing")})


@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_a_token_of_the_user_is_kept(name: str, home: Path) -> None:
    """Guards those who use `ray status` and the like with a token of theirs."""
    chosen = {"RAY_enable_metrics_collection": "1", "RAY_worker_niceness": "7"}
    made = closed_environment({"RAY_TMPDIR": str(home), name: "theirs", **chosen})
    assert not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(made)
    assert chosen.items() <= made.items()


def test_replicas_do_not_stand_back(home: Path) -> None:
    """Guards replicas beside a busy program: with Ray's own niceness they hardly run."""
    made = closed_environment({"RAY_TMPDIR": str(home)})
    assert made["RAY_worker_niceness"] == "0"


@pytest.mark.parametrize(
    ("environ", "address", "mode", "is_told"),
    [
        ({"RAY_AUTH_MODE": "token"}, "10.0.0.1:6379", 0o644, True),
        ({}, "auto", 0o644, True),
        ({}, "10.0.0.1:6379", 0o644, False),  # Ray does not look for it
        ({"RAY_AUTH_MODE": "disabled"}, "auto", 0o644, False),
        ({"RAY_AUTH_TOKEN": "given", "RAY_AUTH_MODE": "token"}, "auto", 0o644, False),
        ({}, "auto", 0o600, False),
    ],
)
def test_a_token_that_all_can_read_is_told(
    environ: dict[str, str],
    address: str,
    mode: int,
    is_told: bool,
    home: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards users of a cluster whose token Ray wrote. No other is told, and none changed."""
    file = home / ".ray" / "auth_token"
    file.parent.mkdir(mode=0o755)
    file.write_text("secret")
    file.chmod(mode)
    with caplog.at_level(logging.WARNING):
        warn_of_open_token(environ, address)
    assert [str(file) in each for each in caplog.messages] == [True] * is_told
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("secret", mode)
    caplog.clear()
    home.chmod(0o700)
    warn_of_open_token(environ, address)
    assert caplog.messages == [], "there is no way to it"


def test_a_file_that_the_user_names_is_looked_at_too(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards a Ray of our own with a token of the user; one that is missing is for Ray to tell."""
    file = home / "token"
    environ = {"RAY_AUTH_TOKEN_PATH": str(file), "RAY_AUTH_MODE": "token"}
    warn_of_open_token(environ, None)
    file.write_text("secret")
    file.chmod(0o644)
    assert caplog.messages == []
    warn_of_open_token(environ, None)
    assert [str(file) in each for each in caplog.messages] == [True]
