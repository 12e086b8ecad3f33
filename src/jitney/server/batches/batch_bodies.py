"""The body of POST /v1/batches, and one line of an input. Strict, as all bodies are. Pure.

Tests: tests/unit/server/batches/test_lines.py and tests/e2e/batches/test_batches.py.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from jitney.server.batches import limits
from jitney.server.openai.bodies import Name, Strict
from jitney.server.openai.chat_body import Metadata
from jitney.server.openai.refused_fields import RefusedField

Endpoint = Literal["/v1/chat/completions", "/v1/completions"]


class BatchBody(Strict):
    """POST /v1/batches."""

    refused = {  # noqa: RUF012, of the base
        "output_expires_after": RefusedField("results stay until their file is deleted"),
    }

    input_file_id: Name = Field(description="A file that was uploaded with purpose `batch`.")
    endpoint: Endpoint = Field(
        description="`/v1/chat/completions` or `/v1/completions`; each line has the same."
    )
    completion_window: Literal["24h"] = Field(
        description="`24h`; what is not done by then is in the error file."
    )
    metadata: Metadata | None = Field(None, description="Up to 16 strings, kept with the batch.")


class BatchLine(Strict):
    """One line of an input."""

    custom_id: Annotated[
        str, StringConstraints(min_length=1, max_length=limits.CUSTOM_ID_CHARACTERS_MAX)
    ]
    method: Literal["POST"]
    url: Endpoint
    body: dict[str, Any]  # Any: a JSON value, checked when it is asked
