"""References to items of earlier answers in /v1/responses, as the AI SDK sends them."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

from tests.support.serving import Reply, Server

THINK = 'root ::= "<think>\\n2 is\\nsmall\\n</think>\\n\\nIt is 2."'
ASKED = {"role": "user", "content": "What does zip do?"}
AGAIN = {"role": "user", "content": "And open?"}


def respond(server: Server, input_: list[dict[str, Any]], **fields: Any) -> Reply:
    return server.post("/v1/responses", {"input": input_, "max_output_tokens": 40, "seed": 1, **fields})


def references(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "item_reference", "id": item["id"]} for item in items]


def same(server: Server, items: list[dict[str, Any]]) -> None:
    """Check that references to items and the items themselves are the same conversation."""
    replies = [respond(server, [ASKED, *given, AGAIN]) for given in (items, references(items))]
    assert [one.status for one in replies] == [200, 200], replies[1].body
    whole, referred = (one.json for one in replies)
    assert whole["usage"]["input_tokens"] == referred["usage"]["input_tokens"]
    assert whole["output"][0]["content"] == referred["output"][0]["content"]


def test_answers_in_one_piece(exact: Server) -> None:
    items = respond(exact, [ASKED], grammar=THINK).json["output"]
    assert [item["type"] for item in items] == ["reasoning", "message"]
    same(exact, items)


def test_streams(exact: Server) -> None:
    data = respond(exact, [ASKED], grammar=THINK, stream=True).body.decode()
    last = json.loads(data.strip().rpartition("data: ")[2])
    same(exact, last["response"]["output"])


def test_a_stream_abandoned_by_its_client_keeps_its_items(exact: Server) -> None:
    body = {"input": [ASKED], "stream": True, "ignore_eos": True, "max_output_tokens": 2000}
    sent = urllib.request.Request(f"{exact.url}/v1/responses", json.dumps(body).encode())
    item, text = "", ""
    with urllib.request.urlopen(sent, timeout=60) as stream:
        while len(text) < 20:
            line = stream.readline()
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                item = event.get("item_id", item)
                text += event.get("delta", "")
    until = time.monotonic() + 20
    while (resumed := respond(exact, [ASKED, {"id": item}, AGAIN])).status != 200:
        assert time.monotonic() < until, resumed.body
        time.sleep(0.02)
    shorter = respond(exact, [ASKED, {"role": "assistant", "content": text[:4]}, AGAIN])
    assert resumed.json["usage"]["input_tokens"] > shorter.json["usage"]["input_tokens"]


def test_unknown_references_are_refused(exact: Server) -> None:
    items = respond(exact, [ASKED], grammar=THINK, store=False).json["output"]
    response = respond(exact, [ASKED, *references(items), AGAIN])
    assert response.status == 400
    assert response.json["error"]["param"] == "input[2]"
    assert "send the item itself" in response.json["error"]["message"]
    without = respond(exact, [ASKED, references(items)[0], items[1], AGAIN])
    assert without.status == 200
    assert (
        without.json["usage"]["input_tokens"]
        == (respond(exact, [ASKED, items[1], AGAIN]).json["usage"]["input_tokens"])
    )
