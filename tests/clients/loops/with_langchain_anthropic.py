"""LangChain over Anthropic's Messages: a streamed loop."""

from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from loop import KEY, MODEL, QUESTION, URL, told, weather

model = ChatAnthropic(model=MODEL, base_url=URL, api_key=KEY).bind_tools([tool(weather)])
messages: list[Any] = [HumanMessage(QUESTION)]
for _ in range(2):
    answer: Any = None
    for chunk in model.stream(messages):
        answer = chunk if answer is None else answer + chunk
    messages.append(answer)
    messages += [
        ToolMessage(weather(**call["args"]), tool_call_id=call["id"]) for call in answer.tool_calls
    ]
told(answer.text)
