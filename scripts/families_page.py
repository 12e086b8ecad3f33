"""The page of model families that llama.cpp runs, made from what was tried. Pure.

`python -m tests.architectures` tries them, and writes one file for each kind of processor.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: what was seen of an architecture, as JSON

TRIED = Path(__file__).resolve().parent.parent / "docs" / "families"

_HEAD = """\
# Families that llama.cpp runs

For each architecture that the library knows, a random checkpoint of a few layers was grown and
asked through jitney's engine: sixteen prompts together and each alone, then next turns of the
same conversations. An answer counts when the logprobs of its likely tokens differ by at most 0.05
from those of llama.cpp called alone with the same tokens, or by what the library's own ways
differ there (its two attention kernels, and token by token): rounding decides between experts
that are nearly as good. So the page says that the layers, the memory and the scheduling of a
family work here. It does not say that a file of a real model is whole, nor that its chat template
is known.

- **state**: layers keep a recurrent state, so a slot cannot be cut back ([decision
  33](decisions/0033-kept-states.md)).
- **window**: some layers see only the last tokens. A preempted sequence is then computed again,
  not saved.
- **equal texts**: *promised* where a trial of the model itself passes, as it does on these
  machines for those marked *seen*: sixteen together said what each says alone, to the last bit.
  *No* is for models with a state.
- **reused**: next turns went on from what was kept.
- **largest difference**: of a logprob to llama.cpp alone.

*untested* means that nobody knows: mostly the random checkpoint lacks something that files of
that family have. `jitney backends MODEL` says of a file whether the library takes it.

This page is made by `make docs`, from what `python -m tests.architectures` wrote. It was run on
{count}: {processors}.
"""


def families_page() -> str:
    """The page as Markdown."""
    seen: dict[str, Mapping[str, Any]] = {
        file.stem: json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(TRIED.glob("*.json"))
    }
    names = sorted({name for found in seen.values() for name in found})
    runs = [name for name in names if any(_runs(found.get(name)) for found in seen.values())]
    noun = "one kind of processor" if len(seen) == 1 else f"{len(seen)} kinds of processors"
    parts = [_HEAD.format(count=noun, processors=", ".join(f"`{each}`" for each in seen))]
    parts.append(f"\n## Run ({len(runs)})\n\n")
    parts.append("| architecture | layers | equal texts | reused | largest difference | on |\n")
    parts.append("| --- | --- | --- | --- | --- | --- |\n")
    parts += [_row(name, seen) for name in runs]
    others = [name for name in names if name not in runs]
    for title, begin in (("Fail", "failed"), ("Untested", "untested"), ("No texts", "no")):
        rows = [row for name in others for row in _reasons(name, seen, begin)]
        if rows:
            parts.append(f"\n## {title} ({len(rows)})\n\n| architecture | why | on |\n")
            parts += ["| --- | --- | --- |\n", *rows]
    return "".join(parts)


def _runs(found: Mapping[str, Any] | None) -> bool:
    return found is not None and not found["reason"]


def _row(name: str, seen: Mapping[str, Mapping[str, Any]]) -> str:
    """What was seen of it, the worst of all processors that it ran on."""
    found = {kind: each[name] for kind, each in seen.items() if _runs(each.get(name))}
    every = list(found.values())
    layers = [word for word in ("state", "window") if every[0][_FIELDS[word]]]
    equal = "no"
    if all(each["is_promised"] for each in every):
        equal = "promised, seen" if all(each["are_equal"] for each in every) else "by trial only"
    reused = "yes" if all(each["is_reused"] for each in every) else "no"
    gap = max(each["gap"] for each in every)
    cells = (f"`{name}`", " and ".join(layers), equal, reused, f"{gap:.4f}", ", ".join(found))
    return f"| {' | '.join(cells)} |\n"


_FIELDS = {"state": "keeps_state", "window": "has_window"}


def _reasons(name: str, seen: Mapping[str, Mapping[str, Any]], begin: str) -> list[str]:
    """One row for each reason that begins so."""
    rows: dict[str, list[str]] = {}
    for kind, found in seen.items():
        word, _, why = found.get(name, {"reason": ""})["reason"].partition(": ")
        if word == begin:
            rows.setdefault(why, []).append(kind)
    return [f"| `{name}` | {why} | {', '.join(kinds)} |\n" for why, kinds in rows.items()]
