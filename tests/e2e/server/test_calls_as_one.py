"""Several prompts in one call: taken as one, or refused as one, at once."""

import pytest

from jitney.backends.fake.backend import FakeSettings
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import World, check_error, request_bytes, wait_until

SLOW = FakeSettings(slots=8, eos_period=0, kv_tokens=65_536, tick_s=0.02, sleeps=True)
LONG = {"prompt": "a", "max_tokens": 4000}


@pytest.mark.parametrize("streams", [False, True])
def test_a_list_for_which_there_is_no_room_is_refused_at_once(start: Start, streams: bool) -> None:
    """Guards an overloaded server and its caller: no answer is worked on that nobody will get."""
    server = start(World(backend=SLOW, sequences=1, queue=4))
    connections = []
    for count in range(1, 4):
        connections.append(server.connect())
        connections[-1].sendall(request_bytes("/v1/completions", LONG))
        wait_until(
            lambda count=count: server.service.engine.stats().live_requests == count,  # type: ignore[misc]
            "it was not accepted",
        )
        wait_until(lambda: server.service.engine.stats().active_slots == 1, "none has started")
    refused = server.complete(["a", "b", "c"], max_tokens=4000, stream=streams)
    assert check_error(refused, 429)["code"] == "rate_limit_exceeded"
    assert int(refused.headers["retry-after"]) >= 1
    stats = server.service.engine.stats
    wait_until(lambda: stats().live_requests == 3, "the rest of the call is worked on for nobody")
    assert stats().refused_requests == 1
    for connection in connections:
        connection.close()
    server.check_idle()


def test_more_tokens_than_may_ever_wait_are_no_overload(start: Start) -> None:
    """Guards clients that try again after 429: they would do so for ever."""
    server = start(World(queue=4096))
    tokens_max = server.service.engine.settings.max_num_queued_tokens
    prompts = [[65] * (tokens_max // (128 * 16) + 1)] * 128
    error = check_error(server.complete(prompts, n=16), 400, "prompt")
    assert str(tokens_max) in error["message"]
    assert server.complete(prompts[:2], n=16, max_tokens=1).status_code == 200
