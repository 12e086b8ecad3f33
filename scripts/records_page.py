"""The reference page of records and statistics, made from their dataclasses. Pure."""

import ast
import inspect
from dataclasses import dataclass
from typing import get_args

from jitney.engine.stats import Stats
from jitney.records import Member, Record

_HEAD = """\
# Records and statistics

An observer is told of every tick and of everything that happens to a request, as it happens:

```python
from jitney import LLM
from jitney.records import Record, RequestDone, TickRecord


def watch(record: Record) -> None:
    match record:
        case TickRecord():
            print(record.number, record.batch_size, record.queue_depth)
        case RequestDone():
            print(record.request_id, record.stop_reason)


llm = LLM()
llm.engine.observe(watch)  # llm.engine.unobserve(watch) ends it
```

- It is called on the engine thread, between two forward passes, for one record after the other.
  It must be quick: while it runs, nobody gets a token. Put what takes longer into a queue of your
  own, and do it on another thread.
- It may be added and removed from any thread, and is told of everything from then on.
- One that raises harms nobody: the record goes to the other observers all the same, and the next
  record to this one too. Failures are counted (`engine.observer_failed_count`, and
  `jitney:observer_failures_total` in the metrics); the first, the second, the fourth, the eighth
  and so on are logged with their traceback.
- It may hand in requests without waiting (`engine.send`) and cancel them; it must not wait for an
  answer, which only the thread that it stands on could give.
- Records are frozen, and hold ids and numbers, never a prompt or a text.

The order for one request is `RequestAccepted`, `RequestStarted`, any
number of `RequestPreempted`, and in the end one of `RequestDone` and `RequestFailed`; or
`RequestRefused` and nothing else. `examples/live_plot.py` draws a load while it runs.

A server over several replicas tells `RequestMoved` and `RequestProgressed` between the beginning
and the end, and `ReplicaGone`. It tells no ticks and no preemptions: those are the replicas' own.

This page is made from the source by `make docs`.
"""

_STATS = """\
`LLM.stats()` and `GET /stats` give all of it at one moment, without waiting for a tick. The
first two groups have the names that ZigLlama (`BatchStats`) and ThemisDB
(`ContinuousBatchingStats`) gave them.
"""


_COMMON = {
    "at": "The moment, in seconds on the engine's clock, which starts anywhere.",
    "request_id": "The request that it is about.",
    "index": "Which completion of the request: 0 unless it wants several.",
    "prompt_tokens": "Tokens of its prompt.",
    "generated_tokens": "Tokens that were made for it, in all its completions.",
    "duration_ms": "From arrival to the end.",
    "prefix_cache_tokens": "Of the prompt, tokens that were found in the cache.",
    "error": "What its caller was told, or the log.",
    "kv_used": "Tokens of memory that are taken, shared ones once, cached prefixes included.",
    "kv_cached": "Of those, tokens that only cached prefixes hold.",
}
"""What fields of several dataclasses mean where nothing else is said."""


@dataclass(frozen=True)
class Field:
    """One field of a dataclass, and what its docstring says."""

    name: str
    kind: str
    about: str


def records_reference() -> str:
    """The whole page, in Markdown."""
    kinds: list[type] = [*get_args(Record), Member]
    return "\n".join((_HEAD, *map(_section, kinds), _section(Stats, _STATS)))


def documented_fields(kind: type) -> list[Field]:
    """The fields of a dataclass with the strings that stand below them."""
    (made,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(made, ast.ClassDef), made
    found: list[Field] = []
    for node in made.body:
        if isinstance(node, ast.AnnAssign):
            assert isinstance(node.target, ast.Name), ast.dump(node)
            name = node.target.id
            found.append(Field(name, ast.unparse(node.annotation), _COMMON.get(name, "")))
        elif isinstance(node, ast.Expr) and found:
            assert isinstance(node.value, ast.Constant), ast.dump(node)
            last = found.pop()
            found.append(Field(last.name, last.kind, " ".join(str(node.value.value).split())))
    return found


def _section(kind: type, more: str = "") -> str:
    rows = [_row(each) for each in documented_fields(kind)]
    about = inspect.getdoc(kind) or ""
    head = ("| field | type | meaning |", "| --- | --- | --- |")
    return "\n".join(
        (f"## {kind.__name__}", "", about, "", *([more] if more else []), *head, *rows, "")
    )


def _row(field: Field) -> str:
    kind = field.kind.replace("|", "\\|")
    return f"| `{field.name}` | `{kind}` | {field.about} |"
