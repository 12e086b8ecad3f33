"""Runs a chat template that nobody here wrote: `Sandbox` compiles it, bounds what it does.

A template comes with a model file and is a program. Jinja's sandbox keeps it away from Python;
this keeps it from running long and from filling memory, without a clock: loops, calls and every
character that it copies are charged to a budget before the work is done, and a template that
overdraws it ends with ModelError. One render at a time; `jitney.text.chat` holds the lock.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from jitney.errors import ModelError

WORK_MAX = 50_000_000
"""Characters that a template may copy; about a second at the worst."""
WORK_PER_CHARACTER = 32
"""On top of that, for each character of the messages: long chats may be copied a few times."""
_TURN, _CALL, _MACRO = 50, 150, 1000
"""What a turn of a loop, a call and a call of a macro cost, in characters copied."""
_NUMBER_MAX = 1_000_000
"""The largest number that a filter or a string method is given: they pad and repeat by it."""
_BITS_MAX = 4096
_SOURCE_CHARACTERS_MAX = 1_000_000
_DEPTH_MAX = 40

_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")
_WIDE_FORMAT = re.compile(r"\d{5}|\*")
# Filters that write their value out as text, with all that is inside of it.
_WRITERS = frozenset({"string", "tojson", "pprint", "join", "format", "replace", "indent"})
_REFUSED_FILTERS = frozenset({"random", "urlize", "xmlattr"})
_REFUSED_METHODS = frozenset({"translate", "maketrans", "expandtabs"})


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja as Hugging Face sets it up for chat templates, on a budget.

    A subclass, because that is the one way in which Jinja lets its calls be intercepted.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            # With a context, so that Jinja does not work it out once and for all when it compiles.
            finalize=pass_context(lambda _, value: self._written(value)),
        )
        self._left = WORK_MAX
        self.filters = {
            name: self._on_budget(name, found)
            for name, found in {**self.filters, "tojson": _to_json}.items()
            if name not in _REFUSED_FILTERS
        }
        self.filters.update(_counted=self._counted, _written=self._written)
        self.globals.pop("lipsum")
        self.globals.update(
            range=range,
            raise_exception=_raise,
            strftime_now=lambda style: now().strftime(style),
        )
        for symbol, operate in (
            ("+", self._add),
            ("*", self._multiply),
            ("**", self._power),
            ("%", self._remainder),
        ):
            self.binop_table[symbol] = operate

    def compiled(self, source: str) -> Template:
        """The template, ready to run. Raises ModelError when it is none."""
        self._left = WORK_MAX
        if len(source) > _SOURCE_CHARACTERS_MAX:
            raise ModelError(
                f"The chat template has {len(source)} characters; "
                f"the limit is {_SOURCE_CHARACTERS_MAX}."
            )
        # A mark for training that means nothing here, and that Jinja does not know.
        source = _GENERATION.sub(_as_if, source)
        try:
            tree = self.parse(source)
            self._put_on_budget(tree)
            return self.from_string(tree)
        except TemplateSyntaxError as error:
            raise ModelError(
                f"The chat template cannot be read: {error.message}, line {error.lineno}."
            ) from None
        except RecursionError:
            raise ModelError("The chat template is nested too deeply.") from None

    def rendered(self, template: Template, values: Mapping[str, object], extra: int) -> str:
        """The text of a template. `extra` is the number of characters that it was given."""
        self._left = WORK_MAX + WORK_PER_CHARACTER * extra
        try:
            return "".join(template.generate(values))
        except SecurityError as error:
            raise ModelError(f"The chat template does what it may not do: {error}.") from None
        except (MemoryError, RecursionError):
            raise _overdrawn() from None

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Jinja's own way into every call of a template."""
        self._spend(_MACRO if isinstance(obj, Macro) else _CALL)
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        if isinstance(owner, str):
            self._spend_on_method(owner, obj.__name__, (*args, *kwargs.values()))
        else:
            self._spend(sum(len(value) for value in args if isinstance(value, Sized)))
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, str | list):
            self._spend(len(result))
        return result

    def _spend(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise _overdrawn()

    def _spend_on_text_of(self, value: object, depth: int = 0) -> None:
        """Charge for all the text in a value, which may share parts and be huge when written."""
        if isinstance(value, str):
            self._spend(len(value))
            return
        self._spend(8)
        if depth > _DEPTH_MAX:
            raise _overdrawn()
        if isinstance(value, Mapping):
            for key, part in value.items():
                self._spend_on_text_of(key, depth + 1)
                self._spend_on_text_of(part, depth + 1)
        elif isinstance(value, list | tuple | set | frozenset):
            for part in value:
                self._spend_on_text_of(part, depth + 1)

    def _spend_on_method(self, owner: str, name: str, args: tuple[Any, ...]) -> None:
        """Charge for a string method before it makes more text than it is given."""
        self._spend(len(owner))
        if name in _REFUSED_METHODS:
            raise SecurityError(f"the string method {name} is not offered")
        _check_numbers(args)
        if name in ("format", "format_map"):
            _check_format(owner)
            self._spend_on_text_of(args)
        elif name == "join" and args and isinstance(args[0], Sized):
            self._spend_on_join(args[0], owner)
        elif name == "replace" and len(args) > 1:
            self._spend_on_replace(owner, args[0], args[1])

    def _spend_on_join(self, parts: Any, separator: str) -> None:
        self._spend(len(parts) * (len(separator) + 1))
        self._spend_on_text_of(list(parts))

    def _spend_on_replace(self, text: str, old: object, new: object) -> None:
        if isinstance(old, str) and isinstance(new, str):
            self._spend((text.count(old) + 1) * len(new))

    def _on_budget(self, name: str, found: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that pays for its value before it runs and for its text afterwards."""
        # Some filters are given the environment or the context before the value.
        at = 1 if getattr(found, "jinja_pass_arg", None) is not None else 0

        @wraps(found)
        def charged(*args: Any, **kwargs: Any) -> Any:
            self._spend(_CALL)
            value, others = args[at], (*args[at + 1 :], *kwargs.values())
            _check_numbers(others)
            if isinstance(value, Iterator):
                value = list(self._counted(value))
            if isinstance(value, Sized):
                self._spend(len(value))
            if name in _WRITERS:
                self._spend_on_text_of((value, *others))
                self._spend_on_writer(name, value, others)
            result = found(*args[:at], value, *args[at + 1 :], **kwargs)
            if isinstance(result, str | list):
                self._spend(len(result))
            return result

        return charged

    def _spend_on_writer(self, name: str, value: Any, others: tuple[Any, ...]) -> None:
        if name == "format" and isinstance(value, str):
            _check_format(value)
        elif name == "join" and isinstance(value, Sized):
            self._spend_on_join(value, str(others[0]) if others else "")
        elif name == "replace" and isinstance(value, str) and len(others) > 1:
            self._spend_on_replace(value, others[0], others[1])
        elif name == "indent" and isinstance(value, str) and others:
            width = others[0] if isinstance(others[0], int) else len(str(others[0]))
            self._spend((value.count("\n") + 1) * width)

    def _written(self, value: Any) -> Any:
        """What is about to be written out: an expression in braces, or a part of `a ~ b`."""
        self._spend_on_text_of(value)
        return value

    def _counted(self, values: Any, text_count: int = 0) -> Any:
        """What a loop is about to go over; `text_count` is the template's own text inside."""
        price = _TURN + text_count
        if isinstance(values, Sized):
            self._spend(price * len(values))
            return values
        if isinstance(values, Iterator):
            return self._counted_one_by_one(values, price)
        return values

    def _counted_one_by_one(self, values: Iterable[Any], price: int) -> Iterator[Any]:
        for value in values:
            self._spend(price)
            yield value

    def _put_on_budget(self, tree: nodes.Template) -> None:
        """Make the template pay for its loops and its `~`; the rest can be intercepted."""
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filtered(loop.iter, "_counted", _text_count(loop.body))
        for joined in list(tree.find_all(nodes.Concat)):
            joined.nodes = [_filtered(part, "_written") for part in joined.nodes]
        tree.set_environment(self)

    def _add(self, left: Any, right: Any) -> Any:
        for value in (left, right):
            if isinstance(value, Sized):
                self._spend(len(value))
        return left + right

    def _multiply(self, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
        for value, times in ((left, right), (right, left)):
            if isinstance(value, Sized) and isinstance(times, int):
                self._spend(len(value) * max(times, 0))
        return left * right

    def _power(self, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))
        return left**right

    def _remainder(self, left: Any, right: Any) -> Any:
        if isinstance(left, str):
            _check_format(left)
            self._spend_on_text_of((left, right))
        return left % right


def _overdrawn() -> ModelError:
    return ModelError(
        "The chat template does more work than a chat can need and was stopped; "
        "use another model file or another template."
    )


def _raise(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _filtered(node: nodes.Node, name: str, *args: int) -> nodes.Filter:
    given = [nodes.Const(arg, lineno=node.lineno) for arg in args]
    return nodes.Filter(node, name, given, [], None, None, lineno=node.lineno)


def _as_if(found: re.Match[str]) -> str:
    return found[1] + ("endif" if found[2] else "if true") + found[3]


def _text_count(body: list[nodes.Node]) -> int:
    """Characters of the template's own text under these nodes."""
    return sum(
        len(text.data)
        for node in body
        for output in (node, *node.find_all(nodes.Output))
        if isinstance(output, nodes.Output)
        for text in output.nodes
        if isinstance(text, nodes.TemplateData)
    )


def _check_numbers(values: tuple[Any, ...]) -> None:
    if any(isinstance(value, int) and abs(value) > _NUMBER_MAX for value in values):
        raise _overdrawn()


def _check_bits(count: int) -> None:
    if count > _BITS_MAX:
        raise _overdrawn()


def _check_format(text: str) -> None:
    """A width in a format can ask for any amount of padding."""
    if _WIDE_FORMAT.search(text):
        raise SecurityError("the format asks for a width that is too large or not fixed")


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, as Hugging Face gives it to templates: no HTML escapes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=min(indent, 16) if indent is not None else None,
        separators=separators,
        sort_keys=sort_keys,
    )
