"""Run by the Python that scripts/agents installs: an agent with one tool, then one with a schema. argv: URL,
the kind of API.
"""

import sys
from typing import Literal

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel


class Person(BaseModel):
    kind: Literal["one"]
    old: bool


@function_tool
def append(line: str) -> str:
    """Append a line to the file."""
    with open("file", "a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    return "written"


set_tracing_disabled(True)
url, kind = sys.argv[1:]
client = AsyncOpenAI(base_url=f"{url}/v1", api_key="unused")
made = OpenAIResponsesModel if kind == "responses" else OpenAIChatCompletionsModel
model = made(model="thinker", openai_client=client)
writer = Agent(name="writer", instructions="You write to files.", model=model, tools=[append])
sys.stdout.write(str(Runner.run_sync(writer, "write to the file").final_output))
asker = Agent(name="asker", model=model, output_type=Person)
assert isinstance(Runner.run_sync(asker, "Who is it?").final_output, Person)
