"""How many tokens of its prompts a server evaluates in the session of an agent.

usage: python -m scripts.bench.reuse SESSION --at URL

`python -m tests.agents.sessions record codex --to SESSION` records one. Its requests are sent to any server
with /v1/chat/completions whose answers have llama-server's timings, for eight tokens each. Prints for each
the tokens of its prompt and those that were evaluated.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

from scripts import cli

_SECONDS = 600


def replay(session: list[dict[str, Any]], url: str) -> list[tuple[int, int]]:
    """(tokens of the prompt, tokens evaluated) of each request."""
    figures = []
    for body in session:
        asked = {**body, "max_tokens": 8, "temperature": 0, "seed": 1, "ignore_eos": True}
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(asked).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_SECONDS) as reply:
            answer = json.load(reply)
        figures.append((answer["usage"]["prompt_tokens"], answer["timings"]["prompt_n"]))
    return figures


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("session", type=Path)
    parser.add_argument("--at", required=True, help="address of a server")
    arguments = parser.parse_args()
    figures = replay(json.loads(arguments.session.read_text()), arguments.at.rstrip("/"))
    print("request  tokens  evaluated")
    for i, (n_prompt, n_evaluated) in enumerate(figures, 1):
        print(f"{i:7}  {n_prompt:6}  {n_evaluated:9}")
    print(f"    all  {sum(n for n, _ in figures):6}  {sum(n for _, n in figures):9}")


if __name__ == "__main__":
    cli.run(main, OSError, ValueError)
