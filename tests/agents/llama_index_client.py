"""Run by the Python that scripts/agents installs: an agent with one tool, then a schema. argv: URL."""

import asyncio
import sys
from typing import Literal

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Person(BaseModel):
    """Who it is."""

    kind: Literal["one"]
    old: bool


def append(line: str) -> str:
    """Append a line to the file."""
    with open("file", "a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    return "written"


llm = OpenAILike(
    model="thinker", api_base=f"{sys.argv[1]}/v1", api_key="unused", is_chat_model=True,
    is_function_calling_model=True, context_window=32768,
)  # fmt: skip


async def run() -> str:
    agent = FunctionAgent(tools=[append], llm=llm, system_prompt="You write to files.", streaming=False)
    return str(await agent.run("write to the file"))


sys.stdout.write(asyncio.run(run()))
found = llm.as_structured_llm(Person).chat([ChatMessage(role="user", content="Who is it?")])
assert isinstance(found.raw, Person)
