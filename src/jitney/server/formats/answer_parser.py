"""Reads the text of one completion as it comes: `AnswerParser`. Pure; one thread.

It returns reasoning, content and parts of calls as early as they are certain. It holds back text
that may become a mark, and passes arguments on while the model writes them. Text that looked like a
call and is not one (not in the form of its family, or an unknown tool) becomes content. If the
model can write only calls, such text is a call that was cut off, and is dropped.

Space around marks belongs to them. However the text is cut, the deltas add up to the same message.
"""

import re

from jitney.server.formats.answer_forms import AnswerForm, CallForm, CallStyle
from jitney.server.formats.json_calls import JsonCall, copy_nested, read_named
from jitney.server.formats.loose_calls import read_gemma, read_python
from jitney.server.formats.tag_calls import TagCall
from jitney.server.formats.text_reader import (
    CLOSERS,
    CONTENT,
    REASONING,
    SPACE,
    ChatDelta,
    DeltaWriter,
    Reading,
    TextReader,
    overlap,
)

_START, _CHANNEL, _MESSAGE, _END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_ENDS = (_START, _CHANNEL, _END, "<|call|>", "<|return|>")
_HEADER_CHARACTERS_MAX = 256
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([A-Za-z0-9_.\-]+)")
_KIND = re.compile(r"<\|channel\|>\s*([a-z]+)")


class AnswerParser:
    """Reads the text of one completion, and gives its reasoning, its content and its calls."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._calling = form.calling
        self._reader = TextReader()
        self._writer = DeltaWriter(form)
        self._field = CONTENT
        """What the text is that is being read."""
        self._flows = False
        """Whether text is passed on up to a mark."""
        self._firsts = ""
        """The first characters of the marks that end it."""
        self._in_list = self._is_header = False
        self._recipient = ""
        """The tool that a message of a channel is for."""
        self.has_reasoning = form.is_thinking
        """Whether a part of the text was reasoning."""
        self._reading = self._read_channels() if form.has_channels else self._read_answer()

    @property
    def call_count(self) -> int:
        """Calls so far."""
        return self._writer.call_count

    def plain_field(self, text: str) -> str | None:
        """The field that this text only adds to, if so: then it need not be pushed."""
        reader = self._reader
        if not self._flows or reader.at < len(reader.text) or any(reader.unsure):
            return None
        if text[-1:].isspace() or any(first in text for first in self._firsts):
            return None
        return self._field if self._writer.is_read(self._field) else None

    def push(self, text: str) -> list[ChatDelta]:
        """Add text, and return what is certain now."""
        self._reader.add(text)
        next(self._reading)
        return self._writer.taken()

    def finish(self) -> list[ChatDelta]:
        """The text has ended: return what was held back."""
        reader = self._reader
        # A header that was cut off is markup.
        if not self._writer.is_in_call and not self._is_header:
            text = reader.taken() + reader.text[reader.at :]
            is_trimmed = self._field == REASONING or self.call_count
            self._writer.text(self._field, text.rstrip(SPACE) if is_trimmed else text)
        return self._writer.taken()

    def _read_answer(self) -> Reading[None]:
        yield from self._read_reasoning()
        calling = self._calling
        if calling is not None:
            if calling.starts_inside:
                yield from self._read_calls("")
            if calling.form.is_bare and (yield from self._begins_bare(calling.form)):
                yield from self._read_calls("")
        while True:
            openings = () if calling is None else calling.form.openings
            yield from self._read_calls((yield from self._read_text(openings)))

    def _begins_bare(self, form: CallForm) -> Reading[bool]:
        """Whether the answer begins with a call, without a mark."""
        found = yield from self._reader.skip()
        return found == "{" or (form.is_list and found == "[")

    def _read_reasoning(self) -> Reading[None]:
        """Read what comes before the answer, if anything does."""
        form, reader = self._form, self._reader
        if form.reasoning is None:
            return
        if form.is_thinking:
            self._field = REASONING
        yield from reader.skip()
        has_mark = yield from reader.skip_mark(form.reasoning.opening)
        if not has_mark and not form.is_thinking:
            return
        self._field, self.has_reasoning = REASONING, True
        yield from reader.skip()
        reader.taken()
        ends = self._calling.form.openings if self._calling and form.reasoning.ends_at_calls else ()
        found = yield from self._read_text((form.reasoning.closing, *ends))
        if found in ends:
            reader.at -= len(found)
        reader.taken()
        self._field = CONTENT
        yield from reader.skip()
        reader.taken()

    def _read_text(self, ends: tuple[str, ...]) -> Reading[str]:
        """Pass text on up to one of these marks, which is read. Space before it is held back."""
        reader = self._reader
        pattern = re.compile("|".join(map(re.escape, ends)) or r"(?!)")
        self._firsts, self._flows = "".join({each[0] for each in ends}), True
        while (found := pattern.search(reader.text, reader.at)) is None:
            rest = reader.text[reader.at :]
            held = max((overlap(rest, each) for each in ends), default=0)
            self._emit_up_to(len(reader.text) - held)
            yield
        self._flows = False
        self._emit_up_to(found.start())
        reader.unsure.append(found[0])
        reader.at = found.end()
        return found[0]

    def _emit_up_to(self, end: int) -> None:
        """Emit this text. Hold back the space at its end, which is dropped before a mark."""
        reader = self._reader
        text, reader.at = reader.text[reader.at : end], end
        body = text.rstrip(SPACE)
        if body:
            self._writer.text(self._field, reader.taken() + body)
        reader.unsure.append(text[len(body) :])

    def _read_calls(self, opening: str) -> Reading[None]:
        """Read calls after this mark, until the text is content again."""
        assert self._calling is not None, "marks of calls are looked for where there are tools"
        form, reader, writer = self._calling.form, self._reader, self._writer
        is_call = yield from self._begin_calls(form, opening)
        while is_call:
            writer.begin()
            yield from self._read_call(form)
            if not writer.is_in_call:
                break
            writer.end()
            is_call = yield from self._read_to_next_call(form)
            writer.is_in_call = False
            reader.taken()
        writer.text(self._field, reader.taken())

    def _begin_calls(self, form: CallForm, opening: str) -> Reading[bool]:
        """Whether a call may come now, after the marks that open a section or a list."""
        reader = self._reader
        if opening and opening == form.bare_opening:
            reader.at -= len(opening)
            reader.unsure.pop()
        if form.section and opening == form.section[0]:
            yield from reader.skip()
            if not (yield from reader.skip_mark(form.opening)):
                return False
        self._in_list = form.is_list and (yield from reader.skip()) == "["
        if self._in_list:
            yield from reader.next()
        is_named = form.style in (CallStyle.NAMED, CallStyle.PYTHON)
        return self._in_list or not form.is_list or is_named

    def _read_call(self, form: CallForm) -> Reading[None]:
        assert self._calling is not None, "marks of calls are looked for where there are tools"
        reader, writer = self._reader, self._writer
        match form.style:
            case CallStyle.TAGS:
                return TagCall(self._calling, reader, writer).read()
            case CallStyle.NAMED if not self._in_list:
                return read_named(form, reader, writer)
            case CallStyle.PYTHON:
                return read_python(form, reader, writer)
            case CallStyle.GEMMA:
                return read_gemma(form, reader, writer)
            case _:
                return JsonCall(form, reader, writer).read()

    def _read_to_next_call(self, form: CallForm) -> Reading[bool]:
        """Read what stands after a call. False if no other call follows at once."""
        yield from self._drop_others()
        reader = self._reader
        closers = CLOSERS.replace("]", "") if self._in_list else CLOSERS
        character = yield from reader.skip(SPACE + closers + (";" if form.is_bare else ""))
        if self._in_list and character in ",]":
            yield from reader.next()
            if character == ",":
                return True
            yield from reader.skip(SPACE + CLOSERS)
        elif form.is_bare and character == "{":
            return True
        if form.closing and (yield from reader.skip_mark(form.closing)):
            yield from reader.skip()
        return form.section is not None and (yield from self._in_section(form))

    def _in_section(self, form: CallForm) -> Reading[bool]:
        """Whether another call follows in the section. Its end is read too."""
        assert form.section is not None, "its caller checked it"
        reader = self._reader
        if (yield from reader.skip_mark(form.opening)):
            return True
        if (yield from reader.skip_mark(form.section[1])):
            yield from reader.skip()
        return False

    def _drop_others(self) -> Reading[None]:
        """Where only one call is wanted, nothing after it is read."""
        assert self._calling is not None, "there was a call"
        while not self._calling.parallel:
            self._reader.at = len(self._reader.text)
            yield

    def _read_channels(self) -> Reading[None]:
        """Read messages of gpt-oss: a header with a channel, perhaps one with a tool, and a text.

        The prompt ends within the first header.
        """
        reader = self._reader
        begins = yield from reader.comes(_START, _CHANNEL, " to=", "to=")
        while True:
            if begins and (yield from self._read_header()):
                yield from self._read_message()
            ending = yield from self._read_text(_ENDS)
            reader.unsure.pop()
            self._field, begins = CONTENT, ending
            if ending in (_START, _CHANNEL):
                reader.at -= len(ending)
            else:
                reader.taken()
                begins = yield from reader.comes(_START, _CHANNEL)

    def _read_header(self) -> Reading[bool]:
        """Read a header. False if what looked like one is none."""
        reader, found = self._reader, ""
        self._is_header = True
        while not found.endswith(_MESSAGE) and len(found) < _HEADER_CHARACTERS_MAX:
            found += yield from reader.next()
        self._is_header = False
        if not found.endswith(_MESSAGE):
            return False
        reader.taken()
        recipient, kinds = _RECIPIENT.search(found), _KIND.findall(found)
        self._recipient = recipient[1] if recipient else ""
        self._field = REASONING if kinds[-1:] == ["analysis"] else CONTENT
        return True

    def _read_message(self) -> Reading[None]:
        """Read a call, if the message is one, or the space that begins the reasoning."""
        calling, reader, writer = self._calling, self._reader, self._writer
        if calling is not None and self._recipient in calling.names:
            self._field = CONTENT
            if (yield from reader.skip()) == "{":
                writer.begin()
                writer.named(self._recipient)
                yield from copy_nested(reader, (yield from reader.next()), writer.arguments)
                writer.end()
                yield from self._drop_others()
                yield from reader.skip(SPACE + CLOSERS)
                writer.is_in_call = False
                reader.taken()
        elif self._field == REASONING:
            self.has_reasoning = True
            yield from reader.skip()
            reader.taken()
        elif calling is not None and calling.starts_inside:
            yield from self._read_calls("")
