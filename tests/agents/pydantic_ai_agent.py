"""Run by the Python that scripts/agents installs: an agent with one tool. argv: the model, and "stream"."""

import sys

from pydantic_ai import Agent

agent = Agent(sys.argv[1], instructions="You write to files.")


@agent.tool_plain
def append(line: str) -> str:
    """Append a line to the file."""
    with open("file", "a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    return "written"


if "stream" in sys.argv:
    for text in agent.run_stream_sync("write to the file").stream_text(delta=True):
        sys.stdout.write(text)
else:
    sys.stdout.write(agent.run_sync("write to the file").output)
