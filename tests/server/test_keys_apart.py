"""One key learns nothing of what another one asked, and cannot keep it out of the queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serving import Reply, Server, first_event, samples_of

NAMES = ("alice", "bob", "carol")
KEYS = {name: {"Authorization": f"Bearer {name}"} for name in (*NAMES, "watcher")}
SECRET = "The password of the vault in the cellar is swordfish, and they meet on Thursday at nine."
WRONG = "Whoever wrote this knew a word of it that nobody here has heard, least of all in the morning."
OTHER = "Nobody is to know that the key to the cellar hangs behind the third picture in the hall."
ENDLESS = {"prompt": "def ", "max_tokens": 900, "ignore_eos": True}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("-np", "2", "--queue", "4", "-c", "8192", "--draft-max", "4", "--metrics-key", "watcher")
    with Server(tmp_path_factory.mktemp("keyed"), *flags, "--api-key", ",".join(NAMES)) as one:
        yield one


def ask(server: Server, name: str, prompt: str, **more: object) -> Reply:
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}
    return server.post("/v1/completions", body, headers=KEYS[name])


def reused(reply: Reply) -> tuple[int, int]:
    """(tokens of the prompt that were cached, tokens that were not evaluated)."""
    usage, timings = reply.json["usage"], reply.json["timings"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == timings["cache_n"]
    return timings["cache_n"], usage["prompt_tokens"] - timings["prompt_n"]


def metrics(server: Server, name: str) -> dict[str, float]:
    samples = samples_of(server.get("/metrics", headers=KEYS[name]))
    return {name: value for name, value in samples.items() if "_created" not in name}


def begin(server: Server, name: str, **more: object):
    link = server.connect()
    link.request("POST", "/v1/completions", json.dumps({**ENDLESS, **more}), KEYS[name])
    server._links.append(link)
    return link


def test_no_key_reuses_the_prompt_of_another(keyed: Server) -> None:
    assert reused(ask(keyed, "alice", SECRET)) == (0, 0)
    assert reused(ask(keyed, "bob", SECRET)) == (0, 0)
    assert reused(ask(keyed, "carol", WRONG)) == (0, 0)


def until_idle(server: Server) -> None:
    server.hang_up()
    server.until(lambda: not any(s["is_processing"] for s in server.get("/slots", headers=KEYS["bob"]).json))


def test_keys_are_apart_while_a_text_is_generated(keyed: Server) -> None:
    first_event(begin(keyed, "alice", prompt=OTHER, stream=True))
    assert max(reused(ask(keyed, "bob", OTHER + " All of them."))) <= 1  # as its own earlier text begins
    until_idle(keyed)
    n, not_evaluated = reused(ask(keyed, "alice", OTHER + " All of them."))
    assert n == not_evaluated > 20  # for its own key, as ever


def test_slots_hide_figures_of_other_keys(keyed: Server) -> None:
    first_event(begin(keyed, "alice", prompt=SECRET, stream=True))
    mine, bobs = (keyed.get("/slots", headers=KEYS[name]).json for name in ("alice", "bob"))
    (busy,) = [slot for slot in mine if slot["is_processing"]]
    assert busy["n_prompt_tokens"] > 20
    assert busy["n_past"] > 20
    (theirs,) = [slot for slot in bobs if slot["is_processing"]]
    assert theirs.keys() == {"id", "id_task", "n_ctx", "speculative", "is_processing", "n_past"}
    assert (theirs["id"], theirs["id_task"], theirs["n_past"]) == (busy["id"], -1, 0)
    until_idle(keyed)
    idle = keyed.get("/slots", headers=KEYS["bob"]).json[busy["id"]]
    assert idle["n_past"] == 0


def test_each_key_sees_its_own_metrics(keyed: Server) -> None:
    ask(keyed, "bob", "zip")
    before = {name: metrics(keyed, name) for name in ("alice", "bob", "watcher")}
    n_prompt = ask(keyed, "alice", SECRET).json["usage"]["prompt_tokens"]
    after = {name: metrics(keyed, name) for name in ("alice", "bob", "watcher")}
    grown = {
        who: {k: v - before[who].get(k, 0) for k, v in after[who].items() if v != before[who].get(k, 0)}
        for who in after
    }
    path = 'specllama_http_requests_total{path="/metrics",status="200"}'
    assert grown["bob"] == {path: 1}
    assert grown["alice"]["specllama_prompt_tokens_total"] == n_prompt
    assert grown["watcher"]["specllama_prompt_tokens_total"] == n_prompt
    assert after["watcher"]["specllama_texts_total"] >= sum(
        after[who]["specllama_texts_total"] for who in ("alice", "bob")
    )
    only = {name.partition("{")[0] for name in after["watcher"]} - {
        name.partition("{")[0] for name in after["bob"]
    }
    assert "specllama_kv_used_ratio" in only
    assert keyed.get("/v1/models", headers=KEYS["watcher"]).status == 401


def test_one_key_cannot_fill_the_queue(keyed: Server) -> None:
    for _ in range(2):
        first_event(begin(keyed, "alice", stream=True))
    for _ in range(3):
        begin(keyed, "alice")
    keyed.until(lambda: metrics(keyed, "watcher")["specllama_texts_waiting"] == 3)
    assert metrics(keyed, "alice")["specllama_texts_waiting"] == 3
    assert metrics(keyed, "bob")["specllama_texts_waiting"] == 0
    refused = ask(keyed, "alice", "zip")
    assert refused.status == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert (refused.error["code"], refused.error["type"]) == ("queue_full", "rate_limit_error")
    assert "this key has 3 texts waiting, and the last 1 of 4 places" in refused.error["message"]
    bobs = begin(keyed, "bob", max_tokens=4)
    keyed.until(lambda: metrics(keyed, "watcher")["specllama_texts_waiting"] == 4)
    full = ask(keyed, "carol", "zip")
    assert (full.status, full.error["code"]) == (429, "queue_full")
    keyed._links[0].close()  # one of the two that run: bob is next, though alice has waited longer
    assert bobs.getresponse().status == 200
    assert metrics(keyed, "watcher")["specllama_texts_waiting"] >= 2
    until_idle(keyed)


def test_share_cache(tmp_path) -> None:
    with Server(tmp_path, "--share-cache", "--draft-max", "0", "--api-key", "alice,bob") as one:
        assert reused(ask(one, "alice", SECRET)) == (0, 0)
        n, not_evaluated = reused(ask(one, "bob", SECRET))
        assert n == not_evaluated > 20


def test_only_the_first_key_may_unload(keyed: Server) -> None:
    """Its own request is refused for another reason: the server holds the model alone."""
    statuses = [
        keyed.post("/models/unload", {"model": "pydoc-target"}, headers=KEYS[name]).status for name in NAMES
    ]
    assert statuses == [400, 403, 403]
    ollama = {"model": "pydoc-target", "keep_alive": 0}
    refused = keyed.post("/api/generate", ollama, headers=KEYS["bob"])
    assert (refused.status, "may not unload" in refused.json["error"]) == (403, True)
    assert keyed.post("/api/generate", ollama, headers=KEYS["alice"]).status == 200
    told = {**ollama, "prompt": "x", "options": {"num_predict": 1}, "stream": False}
    assert (
        keyed.post("/api/generate", told, headers=KEYS["bob"]).status == 200
    )  # clients send it by themselves
    assert keyed.post("/models/unload", {"model": "pydoc-target"}, headers=KEYS["watcher"]).status == 401


def test_a_key_for_administration(tmp_path: Path) -> None:
    """It may do all that the others may; the first one may not unload then."""
    keys = {"SPECLLAMA_API_KEY": "alice,bob", "SPECLLAMA_ADMIN_KEY": "carol"}
    with Server(tmp_path, "-np", "1", env=keys) as one:
        assert ask(one, "carol", "x").status == 200
        statuses = [
            one.post("/models/unload", {"model": "pydoc-target"}, headers=KEYS[name]).status for name in NAMES
        ]
        assert statuses == [403, 403, 400]
