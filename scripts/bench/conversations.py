"""A server, or a router before several, under conversations that share a system prompt.

usage: python -m scripts.bench.conversations --server URL [--clients 1,4,16,64] [--turns 4] [--rounds 2]
           [--system 400] [--tokens 32] [--model NAME]

Every client goes through conversations of some turns, each with what came before it; their system prompt is
the same. Prints for every number of clients the tokens a second of all of them, the median and the 95th
percentile of the time to the first token, the share of the prompts' tokens that the server had already (by
its own count), and failed requests. Each request names its conversation in X-Session-ID. The key comes from
SPECLLAMA_API_KEY.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

import httpx2

from scripts import cli

SECONDS = 600.0  # of an answer
WORDS = ("read", "open", "close", "copy", "walk", "join")
QUESTION = "Explain what os.path.join, shutil.copytree and zip do with their arguments, part {turn}."


@dataclass
class Figures:
    """Of one number of clients. firsts: seconds to first tokens."""

    firsts: list[float] = field(default_factory=list)
    n_tokens: int = 0
    n_prompt: int = 0
    n_cached: int = 0
    problems: list[str] = field(default_factory=list)


def numbers(text: str) -> list[int]:
    """Numbers of clients. Raises ArgumentTypeError."""
    return [cli.whole(1)(one) for one in text.split(",")]


async def conversation(http: httpx2.AsyncClient, given: Any, system: str, into: Figures) -> None:
    """One conversation, which ends at its first failed request."""
    session = secrets.token_hex(8)
    messages = [{"role": "system", "content": system}]
    for turn in range(given.turns):
        messages.append({"role": "user", "content": f"{session}: {QUESTION.format(turn=turn)}"})
        body = {"messages": messages, "max_tokens": given.tokens, "temperature": 0, "ignore_eos": True}
        body |= {"model": given.model, "stream": True, "stream_options": {"include_usage": True}}
        try:
            text = await answer(http, given.server, body, session, into)
        except (httpx2.HTTPError, ValueError) as problem:
            into.problems.append(f"{type(problem).__name__}: {problem}"[:200])
            return
        messages.append({"role": "assistant", "content": text})


async def answer(
    http: httpx2.AsyncClient, server: str, body: dict[str, Any], session: str, into: Figures
) -> str:
    """The text of an answer. Raises HTTPError, ValueError for what is no whole answer."""
    began, first, text, usage = time.monotonic(), 0.0, "", None
    url, headers = f"{server}/v1/chat/completions", {"x-session-id": session}
    async with http.stream("POST", url, json=body, headers=headers) as response:
        if response.status_code != 200:
            raise ValueError(f"{response.status_code} {(await response.aread())[:150]!r}")
        async for event in httpx2.EventSource(response):
            if event.data == "[DONE]":
                break
            chunk = json.loads(event.data)
            if chunk.get("error"):
                raise ValueError(f"the stream ends in {chunk['error']}")
            usage = chunk.get("usage") or usage
            part = "".join(c["delta"].get("content") or "" for c in chunk.get("choices", ()))
            first = first or (time.monotonic() - began if part else 0.0)
            text += part
    if usage is None:
        raise ValueError("the stream ends in the middle of the answer")
    into.firsts.append(first)
    into.n_tokens += usage["completion_tokens"]
    into.n_prompt += usage["prompt_tokens"]
    into.n_cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return text


async def measure(given: Any, n_clients: int) -> tuple[Figures, float]:
    """The figures, and the seconds that all took."""
    into, mark = Figures(), secrets.token_hex(4)  # no earlier measurement has had this system prompt
    system = f"{mark}: {' '.join(itertools.islice(itertools.cycle(WORDS), given.system))}"
    key = os.environ.get("SPECLLAMA_API_KEY", "")
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(timeout=SECONDS, limits=limits, headers=headers, trust_env=False) as http:
        if not given.model:
            listed = (await http.get(f"{given.server}/v1/models")).json()
            given.model = listed["data"][0]["id"]

        async def client() -> None:
            for _ in range(given.rounds):
                await conversation(http, given, system, into)

        began = time.monotonic()
        await asyncio.gather(*(client() for _ in range(n_clients)))
        return into, time.monotonic() - began


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("--server", required=True, help="address, without /v1")
    parser.add_argument("--clients", type=numbers, default="1,4,16,64")
    parser.add_argument("--turns", type=cli.whole(1), default=4)
    parser.add_argument("--rounds", type=cli.whole(1), default=2, help="conversations of each client")
    parser.add_argument("--system", type=cli.whole(0), default=400, help="words of the system prompt")
    parser.add_argument("--tokens", type=cli.whole(1), default=32, help="of an answer")
    parser.add_argument("--model", default="", help="default: the first that is listed")
    given = parser.parse_args()
    given.server = given.server.rstrip("/").removesuffix("/v1")
    print("| clients | tokens/s | first token, median | 95 % | prompt reused | failed |\n" + "|---" * 6 + "|")
    for n in given.clients:
        try:
            found, seconds = asyncio.run(measure(given, n))
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError, IndexError) as problem:
            parser.error(f"{given.server} cannot be measured: {problem}")
        firsts, failed = sorted(found.firsts) or [0.0], len(found.problems)
        late, share = firsts[int(0.95 * (len(firsts) - 1))], found.n_cached / max(1, found.n_prompt)
        middle = firsts[len(firsts) // 2]
        cells = f"{found.n_tokens / seconds:.0f} | {middle:.3f} s | {late:.3f} s | {share:.3f} | {failed}"
        print(f"| {n} | {cells} |", flush=True)
        for problem in dict.fromkeys(found.problems):
            print(f"failed: {problem}")


if __name__ == "__main__":
    main()
