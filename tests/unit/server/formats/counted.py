"""Text that counts how much of it is read: `CountedText`. What is made of it counts as well.

Not seen are searches with regular expressions, and what is joined out of plain text.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from jitney.server.formats.answer_forms import AnswerForm
from jitney.server.formats.answer_parser import AnswerParser

_ALL = (
    *("__add__", "__contains__", "__iter__", "count", "encode", "index", "isspace", "join"),
    *("lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex"),
    *("rpartition", "rsplit", "rstrip", "split", "splitlines", "strip", "translate"),
)
"""Methods that may read or copy the whole text."""


class CountedText(str):
    """A part of an answer."""

    __slots__ = ()
    seen: ClassVar[int] = 0
    """Characters that were looked at or copied, of all texts."""

    def __getitem__(self, key: Any) -> "CountedText":
        found = CountedText(super().__getitem__(key))
        CountedText.seen += len(found)
        return found

    def __radd__(self, other: str) -> "CountedText":
        return CountedText(CountedText(other) + self)

    def find(self, mark: str, *places: Any) -> int:
        """As usual; up to what is found, that much is read."""
        found = super().find(mark, *places)
        end = found if found >= 0 else len(self)
        CountedText.seen += end - (places[0] if places else 0)
        return found


def _counting(name: str) -> Callable[..., Any]:
    plain = getattr(str, name)

    def method(text: CountedText, *given: Any) -> Any:
        CountedText.seen += len(text)
        found = plain(text, *given)
        return CountedText(found) if isinstance(found, str) else found

    return method


for _name in _ALL:
    setattr(CountedText, _name, _counting(_name))


def check_linear(form: AnswerForm, begun: str, part: str) -> None:
    """Four times as many parts of an answer are no more than about four times the work."""
    seen: list[int] = []
    for count in (1_000, 4_000):
        parser = AnswerParser(form)
        CountedText.seen = 0
        for each in map(CountedText, (begun, *[part] * count)):
            if parser.plain_field(each) is None:
                parser.push(each)
        parser.finish()
        seen.append(CountedText.seen)
    assert seen[0] < seen[1] <= 5 * seen[0], seen
