"""Requests made from our own OpenAPI document: none fails on our side, no wrong one is served."""

from dataclasses import replace
from pathlib import Path

import pytest
from schemathesis import GenerationMode

from tests.e2e.server.harness import running
from tests.e2e.server.schema_fuzz import PART_CASES_MAX, QUICK, fuzz, parts_of

CASES = 36


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_the_document_and_the_server_agree(mode: GenerationMode, tmp_path: Path) -> None:
    """Guards both: what the document allows is served or refused in words, the rest refused."""
    with running(replace(QUICK, jobs_dir=tmp_path / "jobs")) as server:
        seen = fuzz(server, mode, CASES)
        server.check_idle()
    assert seen.surprises == []
    assert seen.case_count >= CASES * 2 // 3
    assert {"POST /v1/files", "POST /v1/batches"} < {label for label, _ in seen.statuses}
    served = {label for label, status in seen.statuses if status == 200}
    posts = {"POST /v1/completions", "POST /v1/chat/completions", "POST /tokenize"}
    assert (posts <= served) != mode.is_negative, seen.statuses


def test_many_cases_are_run_in_parts() -> None:
    """Guards the run by hand: every case belongs to one part, and no two parts ask the same."""
    parts = parts_of(20_001, 7)
    assert sum(cases for cases, _ in parts) == 20_001
    assert len({seed for _, seed in parts}) == len(parts)
    assert max(cases for cases, _ in parts) <= PART_CASES_MAX
    assert parts_of(50, 3) == [(50, 3)]
