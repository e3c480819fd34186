"""Run by the Python of scripts/agents: an agent with one tool, then a schema. argv: URL, the model."""

import os
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ThinkingPart


class Person(BaseModel):
    kind: Literal["one"]
    old: bool


url, model = sys.argv[1:]
os.environ |= {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "unused"}
agent = Agent(model, instructions="You write to files.")


@agent.tool_plain
def append(line: str) -> str:
    """Append a line to the file."""
    with open("file", "a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    return "written"


found = agent.run_sync("write to the file")
thoughts = sum(isinstance(part, ThinkingPart) for message in found.all_messages() for part in message.parts)
for output in (Person, NativeOutput(Person)):
    assert isinstance(Agent(model, output_type=output).run_sync("Who is it?").output, Person)
sys.stdout.write(f"{found.output} {thoughts}")
