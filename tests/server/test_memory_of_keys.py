"""What was written for a key is drafted from for that key alone, and no text is another one for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.datastructures import Headers

from specllama.server.http.access import Keys
from tests.support.serving import Reply, Server

ALONE = ("-md", "none", "--draft-max", "6", "-np", "2")
KEYS = {name: {"Authorization": f"Bearer {name}"} for name in ("alice", "bob")}
ASKED = {"max_tokens": 60, "seed": 2, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("keyed"), *ALONE, "--api-key", "alice,bob") as one:
        yield one


def ask(server: Server, name: str | None = None, **fields: object) -> Reply:
    headers = KEYS[name] if name else {}
    return server.post("/v1/completions", {"prompt": "def read(", **ASKED, **fields}, headers=headers)


def text(reply: Reply) -> str:
    return reply.json["choices"][0]["text"]


def from_memory(reply: Reply) -> int:
    return reply.json["speculation"]["drafted_by"].get("memory", 0)


def test_each_key_has_a_memory_of_its_own(keyed: Server) -> None:
    first, bobs, again, bobs_again = (ask(keyed, name) for name in ("alice", "bob", "alice", "bob"))
    assert len({text(reply) for reply in (first, bobs, again, bobs_again)}) == 1
    assert from_memory(first) == from_memory(bobs) == 0
    assert from_memory(again) > 30
    assert from_memory(bobs_again) > 30
    timings = again.json["timings"]
    assert timings["draft_n_accepted"] > 30
    assert timings["draft_n"] == sum(again.json["speculation"]["drafted_by"].values())


def test_a_trace_names_the_memory(keyed: Server) -> None:
    """The sources are those of the documentation."""
    asked = {"seed": 4, "stream": True, "speculation": {"trace": True}}
    ask(keyed, "alice", **asked)
    events = ask(keyed, "alice", **asked).events
    assert events[-1]["speculation"]["drafted_by"]["memory"] > 30
    sources = [
        s for e in events if "tokens" in e.get("speculation", {}) for _, s in e["speculation"]["tokens"]
    ]
    assert {"target", "memory"} <= set(sources) <= {"target", "memory", "copy"}


def test_metrics_count_the_memory_separately(keyed: Server) -> None:
    ask(keyed, "alice")
    ask(keyed, "alice")
    metrics = keyed.get("/metrics", headers=KEYS["alice"]).body.decode()
    assert 'specllama_draft_tokens_by_drafter_total{drafter="memory",model="' in metrics
    assert "alice" not in metrics


@pytest.mark.parametrize(
    ("flags", "remembers"),
    [((), True), (("--no-memory",), False), (("--drafters", "grammar"), False)],
    ids=["default", "no memory", "no copies"],
)
def test_without_keys_all_share_one(tmp_path, flags: tuple[str, ...], remembers: bool) -> None:
    with Server(tmp_path, *ALONE, *flags) as one:
        replies = [ask(one, name) for name in (None, "bob")]
        assert text(replies[0]) == text(replies[1])
        assert (from_memory(replies[1]) > 30) == remembers
        assert ask(one).json["speculation"]["drafted_by"].keys() <= {"copy", "memory"}


class TestKeys:
    KEYS = Keys(("one", "two", "two"))

    @pytest.mark.parametrize(
        ("given", "owner"),
        [
            ({}, ""),
            ({"x-api-key": "three"}, ""),
            ({"x-api-key": "one"}, "key 1"),
            ({"authorization": "Bearer two"}, "key 2"),
            ({"authorization": "bearer two", "x-api-key": "nonsense"}, "key 2"),
            ({"authorization": "Bearer two", "x-api-key": "one"}, "key 1"),
            ({"authorization": "two"}, ""),
        ],
    )
    def test_an_owner_does_not_contain_the_key(self, given: dict[str, str], owner: str) -> None:
        assert self.KEYS.owner(Headers(given)) == owner


def test_a_request_can_opt_out_of_the_memory(keyed: Server) -> None:
    """Measuring needs this: it requests the same text again and again."""
    out = {"seed": 5, "speculation": {"memory": False}}
    first, second = (ask(keyed, "alice", **out) for _ in range(2))
    third, fourth = (ask(keyed, "alice", seed=5) for _ in range(2))
    fifth = ask(keyed, "alice", **out)
    assert len({text(reply) for reply in (first, second, third, fourth, fifth)}) == 1
    others = from_memory(third)  # what other texts of this module have in common with it
    assert from_memory(first) == from_memory(second) == from_memory(fifth) == 0
    assert from_memory(fourth) > max(30, others)
