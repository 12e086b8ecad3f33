"""Lines that cannot be run: each is an error of its own, with a reason, and the rest goes on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from jitney.backends.fake.backend import FakeSettings
from jitney.errors import BackendFailed
from jitney.server.batches.stages import BatchBounds
from tests.e2e.batches.batch_client import (
    CHAT,
    client_of,
    counts_of,
    create,
    custom_ids,
    ended,
    jsonl,
    line,
    results,
    submit,
    upload,
)
from tests.e2e.server.harness import LEAKS, Running, World, check_error, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("served") / "jobs"
    world = World(
        jobs_dir=folder, body_limit=20_000, queue=8, jobs_bounds=BatchBounds(lines_max=1000)
    )
    with running(world) as made:
        yield made


BAD: dict[str, tuple[Any, str, str]] = {
    "no JSON": (b"{oops", "invalid_json", "not valid JSON"),
    "no UTF-8": (b'{"custom_id": "\xff"}', "invalid_json", "UTF-8"),
    "a list": (b"[]", "invalid_json", "JSON object"),
    "two keys": (b'{"custom_id": "a", "custom_id": "b"}', "invalid_json", "twice"),
    "no id": ({"method": "POST", "url": "/v1/completions", "body": {}},
              "missing_required_parameter", "custom_id"),
    "an id that is a number": ({**line("x"), "custom_id": 5}, "invalid_type", "custom_id"),
    "an empty id": ({**line("x"), "custom_id": ""}, "invalid_value", "custom_id"),
    "GET": ({**line("get"), "method": "GET"}, "invalid_value", "method"),
    "another url": ({**line("url"), "url": "/v1/embeddings"}, "invalid_value", "url"),
    "the other url": (line("chat", CHAT), "invalid_value", "the batch is for"),
    "a body that is text": ({**line("text"), "body": "x"}, "invalid_type", "body"),
    "more": ({**line("more"), "tries": 3}, "unknown_parameter", "tries"),
    "an id of another": (line("good-1"), "invalid_value", "same custom_id"),
    "too long": (line("long", user="x" * 25_000), "request_too_large", "bytes"),
    "deep": (b'{"a":' * 100 + b"1" + b"}" * 100, "invalid_json", "deep"),
}  # fmt: skip
"""Lines that are never asked."""

REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "stream": ({"stream": True}, 400, "unsupported_parameter"),
    "priority": ({"priority": "high"}, 400, "unsupported_parameter"),
    "deadline": ({"deadline_ms": 50}, 400, "unsupported_parameter"),
    "unknown": ({"temprature": 1}, 400, "unknown_parameter"),
    "range": ({"temperature": 9}, 400, "invalid_value"),
    "model": ({"model": "gpt-4"}, 404, "model_not_found"),
    "context": ({"prompt": "a" * 9000}, 400, "context_length_exceeded"),
    "prompts": ({"prompt": ["a"] * 100}, 400, "invalid_value"),
}
"""Fields that a live call would be refused for, too, and those that a batch has no use for."""


def test_a_bad_line_is_told_and_the_rest_goes_on(client: OpenAI) -> None:
    """Guards a night's work against one bad line: each input is in exactly one of the files."""
    good = [line(f"good-{number}") for number in range(1, 6)]
    refused = [line(name, **fields) for name, (fields, _, _) in REFUSED.items()]
    bad = [each for each, _, _ in BAD.values()]
    lines = [good[0], *bad, good[1], b"", b"   ", *refused, *good[2:]]
    done = ended(client, submit(client, lines))
    assert done.status == "completed"
    assert counts_of(done) == (len(lines) - 2, 5, len(bad) + len(refused))
    assert custom_ids(results(client, done.output_file_id)) == [f"good-{n}" for n in range(1, 6)]
    errors = results(client, done.error_file_id)
    assert len(errors) == len(bad) + len(refused)
    for place, (row, (name, (_, code, words))) in enumerate(
        zip(errors[: len(bad)], BAD.items(), strict=True)
    ):
        assert row["response"] is None, name
        assert row["error"]["code"] == code, (name, row)
        assert words in row["error"]["message"], (name, row)
        assert row["error"]["line"] == place + 2, name
        assert not LEAKS.search(row["error"]["message"]), name
    for row, (name, (_, status, code)) in zip(errors[len(bad) :], REFUSED.items(), strict=True):
        assert row["custom_id"] == name
        assert row["response"]["status_code"] == status, row
        assert row["response"]["body"]["error"]["code"] == code, row


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", "empty_file"), (b"\n \n\r\n", "empty_file"), (b"x\n" * 1001, "too_many_lines")],
)
def test_an_input_that_is_wrong_as_a_whole_fails_the_batch(
    client: OpenAI, content: bytes, code: str
) -> None:
    """Guards bounds: no line is run of what has none, or too many."""
    done = ended(client, create(client, upload(client, content).id))
    assert done.status == "failed"
    assert done.failed_at is not None
    assert done.errors is not None
    assert done.errors.data is not None
    assert [each.code for each in done.errors.data] == [code]
    assert (done.output_file_id, done.error_file_id) == (None, None)


def test_what_a_line_has_in_vain_is_named_beside_its_status(client: OpenAI) -> None:
    """Guards inputs that other clients wrote: they run, and say what was left out."""
    done = ended(client, submit(client, [line("a"), line("b", keep_alive=5, session_id="x")]))
    first, second = (row["response"] for row in results(client, done.output_file_id))
    assert "ignored" not in first
    assert second["ignored"] == ["keep_alive", "session_id"]
    assert first["status_code"] == second["status_code"] == 200


def test_lines_end_as_editors_end_them(client: OpenAI) -> None:
    """Guards inputs of other systems: a mark at the beginning, CR LF, and no end at the end."""
    content = b"\xef\xbb\xbf" + jsonl([line("a"), line("b")]).replace(b"\n", b"\r\n")
    file = upload(client, content + json.dumps(line("c")).encode())
    done = ended(client, create(client, file.id))
    assert custom_ids(results(client, done.output_file_id)) == ["a", "b", "c"]
    assert done.error_file_id is None


def test_ids_come_back_as_they_were(client: OpenAI) -> None:
    """Guards programs that match by id: any text, on one line of the result."""
    names = ["ü", "line\nend", "\u2028", "\u0085", 'quo"te', "🚌", "x" * 512, "\\"]
    done = ended(client, submit(client, [line(name) for name in names]))
    assert custom_ids(results(client, done.output_file_id)) == names
    wrong = ended(client, submit(client, [line(name, stream=True) for name in names]))
    assert custom_ids(results(client, wrong.error_file_id)) == names


def test_more_completions_than_may_wait_beside_others_find_their_turn(client: OpenAI) -> None:
    """Guards wide lines: one that fills the queue waits until there is room for it."""
    lines = [line(f"c{each}", prompt=["a"] * 8 if each % 3 == 0 else "b") for each in range(12)]
    assert counts_of(ended(client, submit(client, lines))) == (12, 12, 0)


def test_a_line_that_breaks_the_backend_fails_alone(tmp_path: Path) -> None:
    """Guards the others: a line that no pass survives is told, and the rest is answered."""

    def wrap(backend: Any) -> Any:
        plain = backend.execute
        (poison,) = backend.encode([("\x07", False)])

        def execute(batch: Any) -> Any:
            starts = [entry.tokens[0] for entry in batch.entries if entry.start == 0]
            if poison in starts:
                raise BackendFailed("no pass survives this prompt")
            return plain(batch)

        backend.execute = execute
        return backend

    world = World(
        backend=FakeSettings(slots=8, eos_period=0, kv_tokens=65_536),
        jobs_dir=tmp_path / "jobs",
        wrap=wrap,
    )
    with running(world) as server, client_of(server) as client:
        lines = [line(f"c{each}", prompt="\x07" if each == 4 else "y") for each in range(10)]
        done = ended(client, submit(client, lines))
        assert counts_of(done) == (10, 9, 1)
        (row,) = results(client, done.error_file_id)
        assert row["custom_id"] == "c4"
        assert row["response"]["status_code"] == 500
        server.check_idle()


def test_a_wrong_header_is_refused(server: Running) -> None:
    """Guards the idempotency key: empty or endless ones are no keys."""
    body = {"input_file_id": "file-x", "endpoint": "/v1/completions", "completion_window": "24h"}
    for key in ("", "x" * 300):
        check_error(server.post("/v1/batches", body, **{"idempotency-key": key}), 400)
