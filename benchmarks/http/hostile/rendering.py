"""Attacks by the chat template: a program of a stranger's, which comes with the model file."""

from benchmarks.http.hostile.attack import Attack, Bounds, Setup, Target, crowd
from benchmarks.http.hostile.templates import TEMPLATES
from benchmarks.http.wire import Json

CHAT = "/v1/chat/completions"
_WHAT = {
    "slices": "a template that slices and compares a long message 90,000 times",
    "in": "a template that searches a long message 90,000 times",
    "recursive": "a template whose loop calls itself millions of times",
    "memory": "a template that keeps a thousand copies of a long message",
}


async def bomb(target: Target) -> None:
    """The word that sets the template off, and a long message."""
    text = "bomb" + "a" * 400_000
    body: Json = {"messages": [{"role": "user", "content": text}], "max_tokens": 2}
    await crowd(2, lambda number: target.post(CHAT, body))


async def many_messages(target: Target) -> None:
    """As many messages as may be, for a plain template."""
    body: Json = {"messages": [{"role": "user", "content": "x<"}] * 4000, "max_tokens": 1}
    await crowd(4, lambda number: target.post(CHAT, body))


ATTACKS = (
    Attack(name="messages-4000", text="4,000 messages, four at once", run=many_messages),
    *(
        Attack(
            name=f"template-{name}",
            text=_WHAT[name],
            run=bomb,
            setup=Setup(template=name),
            seconds=6.0,
            bounds=Bounds(
                chat_ms=5000.0,
                memory_mib=60.0,
                processes=2,
                because="chats of one model share its template, which takes turns, and has a "
                "second process from then on",
            ),
        )
        for name in TEMPLATES
    ),
)
