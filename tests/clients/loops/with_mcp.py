"""Tools of an MCP server, called for a model over Anthropic's Messages."""

import asyncio
import sys
from typing import Any

from anthropic import AsyncAnthropic
from loop import KEY, MODEL, QUESTION, URL, told
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

SERVER = '''
from mcp.server import MCPServer
server = MCPServer("weather")
@server.tool()
def weather(city: str) -> str:
    """Tell the weather."""
    return "rain"
server.run()
'''


async def ask(session: ClientSession) -> str:
    client = AsyncAnthropic(base_url=URL, api_key=KEY)
    listed = (await session.list_tools()).tools
    tools: Any = [{"name": each.name, "input_schema": each.input_schema} for each in listed]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        async with client.messages.stream(
            model=MODEL, max_tokens=500, messages=messages, tools=tools
        ) as stream:
            message = await stream.get_final_message()
        results = []
        for block in message.content:
            if block.type == "tool_use":
                done: Any = await session.call_tool(block.name, block.input)
                content = done.content[0].text
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": content})
        messages += [{"role": "assistant", "content": message.content}]
        messages += [{"role": "user", "content": results}]
    return message.content[0].text


async def main() -> None:
    server = StdioServerParameters(command=sys.executable, args=["-c", SERVER])
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        told(await ask(session))


asyncio.run(main())
