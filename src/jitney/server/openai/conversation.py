"""From the messages of a body to segments of a prompt, through the model's chat template.

Off the event loop. Raises a RequestError that names the field to mend.
"""

from jitney.errors import InvalidRequest, ModelError
from jitney.server.openai import tools
from jitney.server.openai.chat_body import ChatBody, TokenizeBody, Tool
from jitney.server.service import Service
from jitney.text.chat_template import Segment


def chat_segments(
    service: Service,
    body: ChatBody | TokenizeBody,
    offered: list[Tool] | None,
    switches: dict[str, bool | str] | None = None,
) -> tuple[Segment, ...]:
    """The prompt of a conversation, through the model's chat template.

    A new turn of the assistant begins at its end, unless the body says otherwise.
    """
    messages, template = body.messages or [], service.template
    if template is None:
        raise ModelError("the model has no chat template.")
    if len(messages) > 1 and {each.role for each in messages[-2:]} == {"assistant"}:
        raise InvalidRequest(
            "messages ends with two messages of the assistant; "
            "put one of a user or a tool between them, or join them.",
            "messages",
        )
    values = [tools.message_values(each, index) for index, each in enumerate(messages)]
    listed = tools.offered(offered) if offered else None
    if not template.knows_tools:
        values, listed = tools.as_text(values, listed), None
    continues, adds = bool(body.continue_final_message), body.add_generation_prompt
    return template.render(
        values,
        not continues if adds is None else adds,
        tools=listed,
        switches=switches,
        continue_final_message=continues,
    )


def switches_of(body: ChatBody) -> dict[str, bool | str]:
    """What the chat template is told by name: words of ours, of which the caller chose one."""
    switches: dict[str, bool | str] = {}
    if body.reasoning_effort is not None:
        switches["reasoning_effort"] = body.reasoning_effort
        if body.reasoning_effort == "none":
            switches["enable_thinking"] = False
    given = body.chat_template_kwargs
    if given is not None and given.enable_thinking is not None:
        switches["enable_thinking"] = given.enable_thinking
    return switches
