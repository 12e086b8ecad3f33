"""What the loops of all frameworks share: where the server is, and what is asked."""

import os

URL = os.environ["JITNEY_URL"]
BASE_URL = f"{URL}/v1"
MODEL = os.environ["JITNEY_MODEL"]
KEY = os.environ["JITNEY_KEY"]
QUESTION = "Does it rain in Bern?"
ANSWER = "It rains in Bern."
WEATHER = "rain"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: its name
    """
    assert city == "Bern", city
    return WEATHER


def told(text: object) -> None:
    """End the process with what became of the loop."""
    assert text == ANSWER, text
