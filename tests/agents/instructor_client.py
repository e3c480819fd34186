"""Run by the Python that scripts/agents installs: objects by a call and by a schema. argv: URL."""

import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    kind: Literal["one"]
    old: bool


client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="unused")
asked = [{"role": "user", "content": "Who is it?"}]
thoughts = 0
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    made = instructor.from_openai(client, mode=mode)
    person, answer = made.chat.completions.create_with_completion(
        model="thinker", messages=asked, response_model=Person, max_retries=0
    )
    assert isinstance(person, Person)
    thoughts += bool(answer.choices[0].message.reasoning_content)
sys.stdout.write(str(thoughts))
