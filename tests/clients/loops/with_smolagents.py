"""smolagents, whose agents answer by a call of their own."""

from loop import BASE_URL, KEY, MODEL, QUESTION, told, weather
from smolagents import OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel(MODEL, api_base=BASE_URL, api_key=KEY)
agent = ToolCallingAgent(tools=[tool(weather)], model=model, stream_outputs=True, verbosity_level=0)
told(agent.run(QUESTION))
