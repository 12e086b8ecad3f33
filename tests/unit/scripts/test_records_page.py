"""The page of records: it is what the source makes, and leaves no field without a word."""

from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

import jitney.records
from jitney.core.events import PreemptReason
from jitney.engine.stats import Stats
from jitney.records import Member, Record
from scripts.records_page import documented_fields, records_reference

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "records.md"


def test_the_committed_page_is_what_the_source_makes() -> None:
    """Guards the page against growing old; `make docs` writes it."""
    assert PAGE.read_text(encoding="utf-8") == records_reference()


@pytest.mark.parametrize("kind", [*get_args(Record), Member, Stats], ids=lambda kind: kind.__name__)
def test_every_field_is_told_and_has_a_meaning(kind: type) -> None:
    """Guards a new field, which would stand there with an empty cell."""
    told = documented_fields(kind)
    assert [each.name for each in told] == [each.name for each in fields(kind)]
    assert [each.name for each in told if not each.about.endswith(".")] == []


def test_every_record_is_public() -> None:
    """Guards whoever matches on records: each kind there is has a name in the public module."""
    for kind in (*get_args(Record), PreemptReason):
        assert getattr(jitney.records, kind.__name__) is kind
