"""Requests made from our own OpenAPI document, right ones and wrong ones, against a real server.

`python -m tests.e2e.server.schema_fuzz --cases 20000` runs many by hand; `test_schema` a few. Many
are run in parts, each a process with a seed of its own, as many at once as there are cores: what
makes the cases remembers all that it made.
"""

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.core.transport import Response

from jitney.backends.fake.backend import FakeSettings
from tests.e2e.server.harness import LEAKS, Running, World, events, running

QUICK = World(
    backend=FakeSettings(slots=32, eos_period=0, kv_tokens=65_536), sequences=16, model_len=256
)
"""A short context, because every value of max_tokens is a right one."""

REFUSALS = frozenset({400, 404, 405, 406, 408, 413, 415, 421, 422, 431})
CASE_S_MAX = 60.0
PART_CASES_MAX = 2000
BODILESS_MAX = 15
PLAIN: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "the bus",
    "tokens": [5, 6],
}
PLAIN_SHARE = 0.7


@dataclass
class Seen:
    """What was asked and how it was answered."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    surprises: list[str] = field(default_factory=list)

    @property
    def case_count(self) -> int:
        return sum(self.statuses.values())


def operations(server: Running) -> Iterator[Any]:  # Any: of schemathesis
    """Everything that the document describes."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        yield found.ok()


def is_messages(response: Response) -> bool:
    """Whether it is in Anthropic's form."""
    return "/v1/messages" in str(response.request.url)


def check(response: Response, mode: GenerationMode) -> str | None:
    """What is wrong with this answer to a request of this kind, if anything is."""
    status = response.status_code
    if status == 200:
        if mode.is_negative:
            return "a wrong request was served"
        return _check_good(response)
    if status not in REFUSALS:
        return f"status {status}"
    error = json.loads(response.content)["error"]
    names = {"message", "type"} if is_messages(response) else {"message", "type", "param", "code"}
    if set(error) != names or not error["message"]:
        return f"an error of another shape: {error}"
    if LEAKS.search(error["message"]):
        return f"a message that tells of our insides: {error['message']}"
    return None


def _check_good(response: Response) -> str | None:
    kind = response.headers.get("content-type", [""])[0]
    if "text/event-stream" not in kind:
        if "json" in kind:
            json.loads(response.content)
        return None
    if is_messages(response):
        last_name = response.content.decode().removesuffix("\n\n").rsplit("event: ", 1)[-1]
        is_over = last_name.startswith(("message_stop\n", "error\n"))
        return None if is_over else f"a stream that ends with {last_name[-2000:]!r}"
    last = events(response.content.decode())[-1]
    if last == "[DONE]":
        return None
    if "error" in last and last["error"]["code"] == "deadline_exceeded":
        return None
    return f"a stream that ends with {response.content[-2000:]!r}"


def fuzz(server: Running, mode: GenerationMode, cases_max: int, number: int = 0) -> Seen:
    """Ask every operation so many times in all; the same number asks the same."""
    seen = Seen()
    found = list(operations(server))
    # Bodies are where mistakes hide; an operation without one is soon asked in every way.
    with_body = [operation for operation in found if list(operation.body)]
    share = max(cases_max // len(with_body), 1)
    for operation in found:
        if operation in with_body:
            _ask(operation, mode, settings(max_examples=share), seen, number)
        elif not mode.is_negative:
            _ask(operation, mode, settings(max_examples=min(share, BODILESS_MAX)), seen, number)
    return seen


def _fewer(body: Any, draw: random.Random) -> Any:  # Any: a JSON value
    """The same with a few of its optional fields, mostly about a plain text: as right as it was.

    With all of them, rules that tie fields together would refuse nearly everything.
    """
    if not isinstance(body, dict):
        return body
    subjects = sorted(name for name in body if name in PLAIN)
    others = sorted(name for name in body if name not in PLAIN)
    names = set(draw.sample(others, min(draw.randint(0, 3), len(others)))) - {"model"}
    made = {name: body[name] for name in others if name in names}
    for name in subjects[: draw.randint(1, 4)]:
        made[name] = PLAIN[name] if draw.random() < PLAIN_SHARE else body[name]
    return made


def _ask(operation: Any, mode: GenerationMode, count: settings, seen: Seen, number: int) -> None:
    draw = random.Random(number)

    @seed(number)
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:  # Any: of schemathesis
        if not mode.is_negative:
            case.body = _fewer(case.body, draw)
        response = case.call(timeout=CASE_S_MAX)
        seen.statuses[operation.label, response.status_code] += 1
        wrong = check(response, mode)
        if wrong is not None:
            seen.surprises.append(f"{operation.label}: {wrong}; asked {case.body!r:.2000}")

    ask()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def parts_of(cases: int, seed_first: int) -> list[tuple[int, int]]:
    """How many cases each part has, and its seed."""
    count = max(1, math.ceil(cases / PART_CASES_MAX))
    share, more = divmod(cases, count)
    return [(share + (number < more), seed_first + number) for number in range(count)]


def main() -> int:
    """Run by hand; the exit code says whether anything was a surprise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    parts = parts_of(options.cases, options.seed)
    with ProcessPoolExecutor(max_tasks_per_child=1) as pool:
        failed_count = sum(pool.map(run_part, *zip(*parts, strict=True)))
    say(f"{options.cases} cases, {failed_count} of {len(parts)} parts with surprises")
    return 1 if failed_count else 0


def run_part(cases: int, number: int) -> bool:
    """Ask in this process; whether anything was a surprise."""
    surprises: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        running(replace(QUICK, jobs_dir=Path(folder) / "jobs")) as server,
    ):
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            started_at = time.monotonic()
            seen = fuzz(server, mode, cases // 2, number)
            spent_s = time.monotonic() - started_at
            say(f"seed {number}, {mode.value}: {seen.case_count} cases in {spent_s:.0f} s")
            for (label, status), count in sorted(seen.statuses.items()):
                say(f"  {label} {status}: {count}")
            surprises += seen.surprises
        server.check_idle()
    for surprise in surprises[:20]:
        say(surprise)
    return bool(surprises)


if __name__ == "__main__":
    raise SystemExit(main())
