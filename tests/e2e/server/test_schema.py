"""Requests made from our own OpenAPI document: none fails on our side, no wrong one is served."""

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tests.e2e.server.harness import running

CASES = 36


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """No import at the head: each worker reads all heads, and schemathesis takes half a second."""
    return importlib.import_module("tests.e2e.server.schema_fuzz")


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_the_document_and_the_server_agree(made: ModuleType, mode: str, tmp_path: Path) -> None:
    """Guards both: what the document allows is served or refused in words, the rest refused."""
    with running(replace(made.QUICK, jobs_dir=tmp_path / "jobs")) as server:
        seen = made.fuzz(server, made.GenerationMode[mode], CASES)
        server.check_idle()
    assert seen.surprises == []
    assert seen.case_count >= CASES * 2 // 3
    assert {"POST /v1/files", "POST /v1/batches"} < {label for label, _ in seen.statuses}
    served = {label for label, status in seen.statuses if status == 200}
    posts = {"POST /v1/completions", "POST /v1/chat/completions", "POST /tokenize"}
    assert (posts <= served) != (mode == "NEGATIVE"), seen.statuses


def test_many_cases_are_run_in_parts(made: ModuleType) -> None:
    """Guards the run by hand: every case belongs to one part, and no two parts ask the same."""
    parts = made.parts_of(20_001, 7)
    assert sum(cases for cases, _ in parts) == 20_001
    assert len({seed for _, seed in parts}) == len(parts)
    assert max(cases for cases, _ in parts) <= made.PART_CASES_MAX
    assert made.parts_of(50, 3) == [(50, 3)]
