"""Recorded answers of each family, and what is in them."""

from dataclasses import dataclass, field
from typing import Any

from jitney.server.formats.answer_families import FAMILIES, PLAIN, Family
from jitney.server.formats.answer_forms import AnswerForm, Calling
from jitney.server.formats.answer_parser import AnswerParser

SCHEMAS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "warm": {"type": "boolean"},
            "near": {"type": "array", "items": {"type": "string"}},
            "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    },
    "edit.file": {
        "type": "object",
        "properties": {"path": {"$ref": "#/$defs/path"}, "text": {"type": "string"}},
        "$defs": {"path": {"enum": ["a.py", "b.py"]}},
    },
    "now": {},
}
FAMILY = {each.name: each for each in (*FAMILIES, PLAIN)}


@dataclass(slots=True)
class Message:
    """What was read from an answer."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list, compare=False)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One answer."""

    family: str
    text: str
    message: Message
    is_thinking: bool = False


def form_of(family: Family, *, is_thinking: bool = False, **choices: Any) -> AnswerForm:
    """How an answer of a family is read, with these tools."""
    calling = Calling(form=family.calls, names=tuple(SCHEMAS), schemas=SCHEMAS, **choices)
    return AnswerForm(
        reasoning=family.reasoning,
        is_thinking=is_thinking,
        has_channels=family.has_channels,
        calling=calling,
    )


def read(parts: list[str], form: AnswerForm) -> Message:
    """The message in these parts of a text."""
    parser = AnswerParser(form)
    found = Message()
    deltas: list[dict[str, Any]] = []
    for part in parts:
        name = parser.plain_field(part)
        deltas += parser.push(part) if name is None else [{name: part}]
    for delta in (*deltas, *parser.finish()):
        found.reasoning += delta.get("reasoning_content", "")
        found.content += delta.get("content", "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(found.calls)
                found.calls.append((call["function"]["name"], ""))
                found.ids.append(call["id"])
            name, arguments = found.calls[call["index"]]
            found.calls[call["index"]] = (name, arguments + call["function"]["arguments"])
    assert parser.call_count == len(found.calls)
    return found


def said(content: str = "", *calls: tuple[str, str], thought: str = "") -> Message:
    """A message with these parts."""
    return Message(thought, content, list(calls))


OSLO = ("weather", '{"city": "Oslo", "days": 2}')
ROME = ("weather", '{"city": "Rome"}')
NOW = ("now", "{}")
_BEGIN, _END = "<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>"
_ALL, _ALL_END = (
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
)
_SEP = "<\uff5ctool\u2581sep\uff5c>"
_KIMI, _KIMI_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CODE = 'if a < b:\n    print("<b>")\n'

RECORDED = [
    Recorded("hermes", "<think>\nHm.\n</think>\n\nGood day.", said("Good day.", thought="Hm.")),
    Recorded("hermes", "Hm.\n\nSo.\n</think>\n\nYes", said("Yes", thought="Hm.\n\nSo."), True),
    Recorded("hermes", "Never ends \n", said(thought="Never ends"), True),
    Recorded("hermes", "<think>again</think>x", said("x", thought="again"), True),
    Recorded("hermes", "No thought. <think> is a word.", said("No thought. <think> is a word.")),
    Recorded("hermes", "\n <thi", said("\n <thi")),
    Recorded(
        "hermes",
        "<think>\nWhich?\n</think>\n\nLet me look.\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        said("Let me look.", OSLO, NOW, thought="Which?"),
    ),
    Recorded(
        "hermes",
        '<tool_call>\n{"name": "x"}\n</tool_call>',
        said('<tool_call>\n{"name": "x"}\n</tool_call>'),
    ),
    Recorded(
        "qwen-coder",
        "Hm.\n</think>\n\nLooking.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n"
        "</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        said("Looking.", OSLO, NOW, thought="Hm."),
        True,
    ),
    Recorded(
        "qwen-coder",
        f"<function=edit.file>\n<parameter=path>\na.py\n</parameter>\n<parameter=text>\n{_CODE}\n"
        "</parameter>\n</function>\n</tool_call>",
        said("", ("edit.file", '{"path": "a.py", "text": "if a < b:\\n    print(\\"<b>\\")\\n"}')),
    ),
    Recorded(
        "qwen-coder",
        "<tool_call><function=edit.file><parameter=text>a</parameter> b\n</parameter>\n"
        "</function></tool_call> done",
        said("done", ("edit.file", '{"text": "a</parameter> b"}')),
    ),
    Recorded(
        "qwen-coder",
        "<tool_call>\n<function=weather>\n<parameter=warm>\nTrue\n</parameter>\n<parameter=near>\n"
        '["a", "b"]\n</parameter>\n<parameter=unit>\nnull\n</parameter>\n<parameter=days>\nfew\n'
        "</parameter>\n<parameter=other>\n007\n</parameter>\n</function>\n</tool_call>",
        said(
            "",
            (
                "weather",
                '{"warm": true, "near": ["a", "b"], "unit": null, "days": "few", "other": "007"}',
            ),
        ),
    ),
    Recorded(
        "qwen-coder",
        "<tool_call>\n<function=edit.file>\n<parameter=text>\nhalf a fi",
        said("", ("edit.file", '{"text": "half a fi')),
    ),
    Recorded("qwen-coder", "<tool_call>\n<function=rm>\n", said("<tool_call>\n<function=rm>\n")),
    Recorded(
        "glm",
        "<think>Hm.</think>\nSo.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>"
        "\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call><tool_call>now</tool_call>",
        said("So.", OSLO, NOW, thought="Hm."),
    ),
    Recorded(
        "glm",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>",
        said("", ROME),
    ),
    Recorded("glm", "<tool_call>weather it is", said("<tool_call>weather it is")),
    Recorded("llama", '{"name": "weather", "parameters": {"city": "Rome"}}', said("", ROME)),
    Recorded(
        "llama", '<|python_tag|>{"name": "weather", "parameters": {"city": "Rome"}}', said("", ROME)
    ),
    Recorded("llama", '{"name": "nobody"}', said('{"name": "nobody"}')),
    Recorded(
        "mistral",
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}}, {"name": "now"}]',
        said("", ROME, NOW),
    ),
    Recorded(
        "mistral",
        '[THINK]Hm.[/THINK]Looking.[TOOL_CALLS]weather[ARGS]{"city": "Oslo", "days": 2}'
        "[TOOL_CALLS]now[ARGS]{}",
        said("Looking.", OSLO, NOW, thought="Hm."),
    ),
    Recorded(
        "mistral", '[TOOL_CALLS]weather[CALL_ID]abc123DEF[ARGS]{"city": "Rome"}', said("", ROME)
    ),
    Recorded("mistral", "[TOOL_CALLS]now[ARGS]{}}[TOOL_CALLS]now[ARGS]{}", said("", NOW, NOW)),
    Recorded("mistral", "[THINK]Hm.[/THINK]Hello", said("Hello", thought="Hm.")),
    Recorded("mistral", "[TOOL_CALLS]nobody[ARGS]{}", said("[TOOL_CALLS]nobody[ARGS]{}")),
    Recorded(
        "gpt-oss",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi.",
        said("Hi.", thought="Hm."),
    ),
    Recorded(
        "gpt-oss",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}',
        said("", ROME, thought="Hm."),
    ),
    Recorded(
        "gpt-oss",
        "<|channel|>commentary<|message|>Looking.<|end|><|start|>assistant to=functions.weather"
        '<|channel|>commentary json<|message|>{"city": "Oslo", "days": 2}<|call|>'
        "<|start|>assistant to=functions.now<|channel|>commentary<|message|>{}<|call|>",
        said("Looking.", OSLO, NOW),
    ),
    Recorded(
        "gpt-oss",
        ' to=functions.weather<|channel|>analysis<|message|>{"city": "Rome"}',
        said("", ROME),
    ),
    Recorded("gpt-oss", "<|channel|>analysis<|message|>Never ends", said(thought="Never ends")),
    Recorded("gpt-oss", "<|channel|>commentary to=python <|constrain|>code<|message|>1", said("1")),
    Recorded(
        "gpt-oss",
        '<|channel|>commentary to=functions.weather<|message|>{"city": "Rome"}}\n<|call|>',
        said("", ROME),
    ),
    Recorded("gpt-oss", "<|channel|>fin", said()),
    Recorded("gpt-oss", "no header at all", said("no header at all")),
    Recorded(
        "gemma",
        '<|channel>thought\nHm.\n<channel|>So.\n<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:2}'
        "<tool_call|><|tool_call>call:now{}<tool_call|>",
        said("So.", OSLO, NOW, thought="Hm."),
    ),
    Recorded("gemma", "<|channel>thought\n<channel|>Hi.", said("Hi.")),
    Recorded(
        "gemma",
        '<|tool_call>call:weather{near:[<|"|>a "b"<|"|>,<|"|>c<|"|>],warm:true,unit:null}'
        "<tool_call|>",
        said("", ("weather", '{"near": ["a \\"b\\"", "c"], "warm": true, "unit": null}')),
    ),
    Recorded(
        "gemma",
        "<|tool_call>call:nobody{}<tool_call|>",
        said("<|tool_call>call:nobody{}<tool_call|>"),
    ),
    Recorded(
        "functiongemma",
        "<start_function_call>call:weather{city:<escape>Rome<escape>}<end_function_call>",
        said("", ROME),
    ),
    Recorded(
        "deepseek",
        f"Hm.</think>So.{_ALL}{_BEGIN}weather{_SEP}"
        + '{"city": "Oslo", "days": 2}'
        + _END
        + f"{_BEGIN}now{_SEP}"
        + "{}"
        + f"{_END}{_ALL_END}",
        said("So.", OSLO, NOW, thought="Hm."),
        True,
    ),
    Recorded(
        "deepseek",
        f"{_ALL}{_BEGIN}function{_SEP}weather\n```json\n" + '{"city": "Rome"}' + f"\n```{_END}\n"
        f"{_BEGIN}function{_SEP}now\n```json\n" + "{}" + f"\n```{_END}{_ALL_END}",
        said("", ROME, NOW),
    ),
    Recorded(
        "deepseek",
        f"{_ALL}{_BEGIN}function{_SEP}now\n```json\n" + "{}}" + f"\n```{_END}{_ALL_END}",
        said("", NOW),
    ),
    Recorded(
        "deepseek",
        f"{_ALL}{_BEGIN}now{_SEP}{{}}}}\n{_END}{_BEGIN}now{_SEP}{{}}{_END}{_ALL_END}",
        said("", NOW, NOW),
    ),
    Recorded("deepseek", f"{_ALL}nothing", said(f"{_ALL}nothing")),
    Recorded("deepseek", f"{_ALL}{_BEGIN}nobody{_SEP}x", said(f"{_ALL}{_BEGIN}nobody{_SEP}x")),
    Recorded(
        "kimi",
        f"<think>Hm.{_KIMI}<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Oslo", "days": 2}<|tool_call_end|><|tool_call_begin|>functions.now:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|>" + _KIMI_END,
        said("", OSLO, NOW, thought="Hm."),
    ),
    Recorded(
        "kimi",
        f" Hm.</think>So. {_KIMI}<|tool_call_begin|>functions.weather:3 "
        '<|tool_call_argument_begin|> {"city": "Rome"} <|tool_call_end|>' + _KIMI_END,
        said("So.", ROME, thought="Hm."),
        True,
    ),
    Recorded("kimi", "<think>Hm.</think>Hi.", said("Hi.", thought="Hm.")),
    Recorded(
        "kimi", f"{_KIMI}<|tool_call_begin|>weather", said(f"{_KIMI}<|tool_call_begin|>weather")
    ),
    Recorded(
        "lfm2",
        '<think>Hm.</think>So. <|tool_call_start|>[weather(city="Oslo", days=2), now()]'
        "<|tool_call_end|> ok",
        said("So.ok", OSLO, NOW, thought="Hm."),
    ),
    Recorded(
        "lfm2",
        "<|tool_call_start|>[weather(near=['a', \"it\\'s\\n\\u00e9\",], warm=True, unit=None)]"
        "<|tool_call_end|>",
        said("", ("weather", '{"near": ["a", "it\'s\\né"], "warm": true, "unit": null}')),
    ),
    Recorded(
        "lfm2",
        "<|tool_call_start|>[weather(detail={'k': 1, 2: [1.5, (True,)]})]<|tool_call_end|>",
        said("", ("weather", '{"detail": {"k": 1, "2": [1.5, [true]]}}')),
    ),
    Recorded("lfm2", "<|tool_call_start|>[weather(city=", said("", ("weather", '{"city": '))),
    Recorded(
        "lfm2",
        "<|tool_call_start|>[1, 2]<|tool_call_end|>",
        said("<|tool_call_start|>[1, 2]<|tool_call_end|>"),
    ),
    Recorded(
        "granite",
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Rome"}}, {"name": "now"}]',
        said("", ROME, NOW),
    ),
    Recorded(
        "nemotron",
        'Hm.\n</think>\n\nSo.\n<TOOLCALL>[{"name": "weather", "arguments": '
        '{"city": "Oslo", "days": 2}}, {"name": "now", "arguments": {}}]</TOOLCALL>\n',
        said("So.", OSLO, NOW, thought="Hm."),
        True,
    ),
    Recorded("nemotron", "<TOOLCALL>[none]</TOOLCALL>", said("<TOOLCALL>[none]</TOOLCALL>")),
    Recorded(
        "seed",
        "<seed:think>\nHm.</seed:think>\nSo.\n<seed:tool_call>\n<function=weather>\n"
        "<parameter=city>Oslo</parameter>\n<parameter=days>2</parameter>\n</function>\n"
        "</seed:tool_call>\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        said("So.", OSLO, NOW, thought="Hm."),
    ),
    Recorded("granite", "<|tool_call|>none", said("<|tool_call|>none")),
    Recorded("pythonic", "[weather(city='Rome'), now()]", said("", ROME, NOW)),
    Recorded("pythonic", "<|python_start|>[now()]<|python_end|>", said("", NOW)),
    Recorded("pythonic", "<|python_start|>[now())]]<|python_end|> so", said("so", NOW)),
    Recorded("pythonic", '{"name": "weather", "parameters": {"city": "Rome"}}', said("", ROME)),
    Recorded("pythonic", "[1] says so.", said("[1] says so.")),
    Recorded("plain", "Just text, <tool_call> or not", said("Just text, <tool_call> or not")),
]
