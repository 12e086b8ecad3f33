"""Requests made from our own OpenAPI document: none fails on our side, no wrong one is served."""

import pytest
from schemathesis import GenerationMode

from tests.e2e.server.harness import running
from tests.e2e.server.schema_fuzz import QUICK, fuzz

CASES = 120


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_the_document_and_the_server_agree(mode: GenerationMode) -> None:
    """Guards both: what the document allows is served or refused in words, the rest refused."""
    with running(QUICK) as server:
        seen = fuzz(server, mode, CASES)
        server.check_idle()
    assert seen.surprises == []
    assert seen.case_count >= CASES * 2 // 3
    served = {label for label, status in seen.statuses if status == 200}
    posts = {"POST /v1/completions", "POST /v1/chat/completions", "POST /tokenize"}
    assert (posts <= served) != mode.is_negative, seen.statuses
