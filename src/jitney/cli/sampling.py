"""Makes `SamplingParams` from the options of a command. Main thread; reads a schema file."""

import json
from pathlib import Path

from jitney.cli.verbs import TEMPERATURE, RunOptions
from jitney.core.params import PARAMETERS, SamplingParams, StructuredOutputsParams
from jitney.errors import InvalidRequest

SCHEMA_BYTES_MAX = 1_048_576


def sampling(options: RunOptions) -> SamplingParams:
    """The sampling parameters of the options. Raises InvalidRequest."""
    structured = None
    if options.json_schema is not None and options.regex is not None:
        raise InvalidRequest("--json-schema and --regex exclude each other; leave one out.")
    if options.json_schema is not None:
        structured = StructuredOutputsParams(json=_read_schema(options.json_schema))
    elif options.regex is not None:
        structured = StructuredOutputsParams(regex=options.regex)
    values = {name: getattr(options, name, None) for name in PARAMETERS}
    values["temperature"] = choose_temperature(options.temperature, options.greedy)
    values["structured_outputs"] = structured
    return SamplingParams(**{name: value for name, value in values.items() if value is not None})


def choose_temperature(temperature: float | None, greedy: bool) -> float:
    """The temperature that the two options mean."""
    if greedy and temperature:
        raise InvalidRequest(
            f"--greedy and --temperature {temperature:g} exclude each other; leave one out."
        )
    if greedy:
        return 0.0
    return TEMPERATURE if temperature is None else temperature


def _read_schema(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(SCHEMA_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidRequest(
            f"--json-schema {file} cannot be read: {error.strerror}.", "json_schema"
        ) from None
    if len(content) > SCHEMA_BYTES_MAX:
        raise InvalidRequest(f"--json-schema {file} is larger than {SCHEMA_BYTES_MAX} bytes.")
    try:
        text = content.decode("utf-8")
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"--json-schema {file} is not JSON: {error}.", "json_schema") from None
    return text
