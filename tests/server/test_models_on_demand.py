"""Several models: listed, loaded when they are asked for, unloaded for others and when nobody uses them."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from tests.support import tinyembedders, tinygguf, tinyheads
from tests.support.hub_cache import put
from tests.support.serving import QUESTION, START, Api, Reply, Server, first_event, rest

PYDOC, TINY, OTHER, PAIR = "pydoc-target", "me/tiny:F32", "me/other:F32", "me/pair:Q4_0"
BROKEN, SMALL, CRASHING = "me/broken:Q8_0", "me/small:Q4_0", "me/crashing:F32"
MANIFEST = """
[models.pair-8b]
aliases = ["8B"]
repo = "me/pair"
quant = "Q4_0"

[models.pair-1b]
repo = "me/small"
quant = "Q4_0"

[models.far-away]
repo = "me/far-away"

[[pairs]]
target = "8B"
drafts = ["pair-1b"]
"""
ENDLESS = {"prompt": "def ", "ignore_eos": True, "max_tokens": 900}


@pytest.fixture(scope="session")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with models, and a models.toml."""
    folder = tmp_path_factory.mktemp("disk")
    for seed, name in enumerate(("tiny", "other", "crashing")):
        content = tinygguf.llama(folder / f"{name}.gguf", seed=seed).read_bytes()
        put(folder / "hub", f"me/{name}", f"{name}-F32.gguf", content)
    put(folder / "hub", "me/pair", "pair-Q4_0.gguf", EMBEDDED_TARGET.read_bytes())
    put(folder / "hub", "me/small", "small-Q4_0.gguf", EMBEDDED_DRAFT.read_bytes())
    put(folder / "hub", "me/broken", "broken-Q8_0.gguf", b"<html>this is no model</html>")
    (folder / "models.toml").write_text(MANIFEST)
    return folder


def several(home: Path, disk: Path, *flags: str) -> Server:
    """A server that loads models on demand. The embedded pair is its default."""
    environ = {
        "SPECLLAMA_MODEL": None,
        "SPECLLAMA_MODELS": str(disk / "models.toml"),
        "HF_HUB_CACHE": str(disk / "hub"),
    }
    return Server(home, "-c", "512", "-np", "2", "--draft-max", "4", *flags, env=environ)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, disk: Path) -> Iterator[Server]:
    """Memory for all models."""
    with several(tmp_path_factory.mktemp("both"), disk, "--models-max", "0") as one:
        yield one
        assert not any("unexpected" in line or "Traceback" in line for line in one.lines)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, disk: Path) -> Iterator[Server]:
    """Memory for one model, and two keys."""
    flags = ("--models-max", "1", "--queue", "4", "--api-key", "first,second")
    with several(tmp_path_factory.mktemp("single"), disk, *flags) as one:
        one.key = "first"
        yield one
        assert not any("unexpected" in line or "Traceback" in line for line in one.lines)


def models(server: Server) -> dict[str, str]:
    """The listed models, and whether they are in memory."""
    return {m["id"]: m["status"]["value"] for m in server.get("/v1/models?known=true").json["data"]}


def loaded(server: Server) -> list[str]:
    return [name for name, status in models(server).items() if status == "loaded"]


def engines(server: Server) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children()


def answered_by(reply: Reply) -> str:
    assert reply.status == 200, reply.json
    model: str = reply.json["model"]
    return model


class TestList:
    def test_lists_models_on_disk_and_known_models(self, both: Server) -> None:
        listing = both.get("/v1/models?known=true").json
        first = listing["data"][0]
        assert (first["id"], first["status"]) == (PYDOC, {"value": "loaded"})
        assert first["meta"]["n_ctx"] == 512
        assert listing["first_id"] == PYDOC
        listed = {m["id"]: m for m in listing["data"]}
        assert {TINY, OTHER, PAIR, SMALL} <= set(listed)
        assert listed[OTHER]["status"] == {"value": "unloaded"}
        assert listed[OTHER]["meta"]["size"] > 100_000
        away = listed["far-away"]["status"]
        assert away == {"value": "not downloaded", "pull": "specllama pull far-away"}
        assert not {"pair-8b", "pair-1b"} & set(listed), "these are on disk"
        assert [listed[name]["fits"] for name in (PYDOC, OTHER)] == [True, True]
        assert listed["llama-3.1-8b"]["fits"] in (True, False), "by the memory of this machine"
        assert "fits" not in listed["far-away"]
        assert 4e9 < listed["llama-3.1-8b"]["meta"]["about_size"] < 5e9
        assert listed["qwen3.6-27b-eagle3"]["meta"]["is_head"]
        assert list(listed).index("far-away") > list(listed).index(SMALL)
        on_disk = {m["id"] for m in both.get("/v1/models").json["data"]}
        assert on_disk == {name for name, m in listed.items() if m["status"]["value"] != "not downloaded"}
        assert (first["max_model_len"], first["context_length"]) == (512, 512)

    def test_one_model_by_any_of_its_names(self, both: Server) -> None:
        for name in ("8B", "pair-8b", "me/pair", PAIR, "8B:latest", "pair-Q4_0", "pair-Q4_0.gguf"):
            reply = both.get(f"/v1/models/{name}")
            assert (reply.status, reply.json["id"]) == (200, name), reply.json
            assert both.post("/api/show", {"model": name}).status == 200
        assert both.get("/v1/models/far-away").status == 404

    def test_files_that_cannot_be_loaded_are_not_listed(self, both: Server, disk: Path) -> None:
        """A line says once that a file is damaged, as soon as the server is ready."""
        both.wait_for(f"{BROKEN} is not listed: ")
        head = tinyheads.eagle3(disk / "head.gguf").read_bytes()
        put(disk / "hub", "me/drafts", "drafts-F32.gguf", head)
        both.until(lambda: both.chat(QUESTION, model="me/drafts").status == 400)
        for path, field, name in (("/v1/models", "data", "id"), ("/api/tags", "models", "name"),
                                  ("/api/v0/models", "data", "id")):  # fmt: skip
            names = {one[name] for one in both.get(path).json[field]}
            assert TINY in names
            assert not {BROKEN, "me/drafts:F32"} & names
        assert "is a head without a model" in both.chat(QUESTION, model="me/drafts").error["message"]
        assert both.said(BROKEN, "is not listed") == 1
        assert not both.said("me/drafts", "is not listed", seconds=0)
        shutil.rmtree(disk / "hub" / "models--me--drafts")

    def test_a_model_that_arrives_later_is_found(self, both: Server, disk: Path) -> None:
        assert both.complete(model="me/late", max_tokens=1).status == 404
        put(disk / "hub", "me/late", "late-F32.gguf", (disk / "tiny.gguf").read_bytes())
        both.until(lambda: both.complete(model="me/late", max_tokens=1).status == 200)
        shutil.rmtree(disk / "hub" / "models--me--late")

    def test_an_embedding_model_on_disk(self, both: Server, disk: Path) -> None:
        """It is listed as one, and a request for it says how it is served."""
        content = tinyembedders.bert(disk / "embedder.gguf").read_bytes()
        put(disk / "hub", "me/embedder", "embedder-F32.gguf", content)
        name = "me/embedder:F32"
        both.until(lambda: name in models(both))
        entries = {m["id"]: m for m in both.get("/v1/models?known=true").json["data"]}
        assert entries[name]["meta"]["embeds"]
        assert entries["nomic-embed-text-v1.5"]["meta"]["embeds"], "of models.toml, not on disk"
        assert "embeds" not in entries[OTHER]["meta"]
        assert both.post("/api/show", {"model": name}).json["capabilities"] == ["embedding"]
        assert both.get(f"/api/v0/models/{name}").json["type"] == "embeddings"
        for reply in (
            both.chat(QUESTION, model=name, max_tokens=1),
            both.post("/v1/embeddings", {"input": "a", "model": name}),
            both.post("/models/load", {"model": name}),
        ):
            assert reply.status == 400, reply.json
            assert f"start specllama serve with --embeddings {name}" in reply.error["message"]
        ollama = both.post("/api/chat", {"model": name, "messages": [{"role": "user", "content": "a"}]})
        assert (ollama.status, "is an embedding model" in ollama.json["error"]) == (400, True)
        shutil.rmtree(disk / "hub" / "models--me--embedder")


class TestNames:
    @pytest.mark.parametrize(
        ("name", "needle"),
        [
            ("gpt-4o", "there is no model 'gpt-4o' here, this server has pydoc-target, "),
            ("far-away", "'far-away' is not on this disk: specllama pull far-away downloads it"),
            (str(EMBEDDED_TARGET), "there is no model"),
            ("../../etc/passwd", "there is no model"),
            ("me/nothing:Q4_0", "there is no model"),
        ],
    )
    def test_other_names_are_404(self, both: Server, name: str, needle: str) -> None:
        for stream in (False, True):
            for reply in (
                both.complete(model=name, stream=stream, max_tokens=1),
                both.chat(QUESTION, model=name, stream=stream, max_tokens=1),
                both.post("/tokenize", {"content": "zip", "model": name}),
                both.get(f"/props?model={name}"),
            ):
                assert (reply.status, needle in reply.error["message"]) == (404, True), reply.json
                assert BROKEN not in reply.error["message"]

    def test_a_damaged_model_is_not_healthy(self, both: Server, single: Server) -> None:
        for path in ("/health", "/health/ready"):
            reply = both.get(f"{path}?model={BROKEN}")
            assert (reply.status, "broken-Q8_0.gguf" in reply.error["message"]) == (503, True), reply.json
        reply = Api(single.host, single.port).get(f"/health?model={BROKEN}")
        assert (reply.status, reply.error["message"]) == (503, "the model cannot be loaded")

    def test_a_damaged_model_has_no_slots_and_is_not_unloaded(self, both: Server) -> None:
        for reply in (
            both.get(f"/props?model={BROKEN}"),
            both.get(f"/slots?model={BROKEN}"),
            both.post("/models/load", {"model": BROKEN}),
            both.post("/models/unload", {"model": BROKEN}),
        ):
            assert (reply.status, "broken-Q8_0.gguf" in reply.error["message"]) == (503, True), reply.json

    def test_no_name_is_no_model_to_load_or_unload(self, both: Server) -> None:
        """Elsewhere it is the one in memory."""
        for path in ("load", "unload", "pull", "pull/stop"):
            reply = both.post(f"/models/{path}", {"model": ""})
            assert (reply.status, reply.error["param"]) == (400, "model"), reply.json
        for path in ("/health", "/props", "/slots", "/metrics"):
            assert both.get(f"{path}?model=").status == 200, path

    def test_health_names_no_models_without_a_key(self, both: Server, single: Server) -> None:
        reply = Api(single.host, single.port).get("/health?model=nothing")
        assert (reply.status, reply.error["message"]) == (404, "there is no such model here")
        assert TINY in both.get("/health?model=nothing").error["message"]

    def test_a_pinned_model_is_served_alone(self, tmp_path: Path, disk: Path) -> None:
        with several(tmp_path, disk, "-m", "8B", "--alias", "mine", "--strict-model") as one:
            assert list(models(one)) == ["mine"]
            assert one.get("/props").json["draft_model_path"].endswith("small-Q4_0.gguf")
            for name in ("mine", "8B", None):
                assert one.complete(model=name, max_tokens=1).status == 200
            reply = one.complete(model="pydoc", max_tokens=1)
            assert (reply.status, reply.error["message"]) == (
                404,
                "there is no model 'pydoc' here, this server has mine",
            )
            assert one.post("/models/unload", {"model": "mine"}).status == 400
            assert len(engines(one)) == 1


class TestTogether:
    """Models that fit into memory together."""

    def test_a_model_is_loaded_when_it_is_asked_for(self, both: Server) -> None:
        assert answered_by(both.complete(model=TINY, max_tokens=4)) == TINY
        assert {PYDOC, TINY} <= set(loaded(both))
        assert answered_by(both.complete(max_tokens=4)) == TINY, "the one that was used last"
        assert answered_by(both.complete(model="pydoc", max_tokens=4)) == "pydoc"
        assert answered_by(both.complete(max_tokens=4)) == PYDOC
        assert any(f"{TINY} is in memory, speculation on" in line for line in both.lines)

    def test_a_model_is_loaded_with_its_draft(self, both: Server) -> None:
        reply = both.complete(model="8B", max_tokens=40, temperature=0)
        assert reply.json["timings"]["draft_n"] > 0
        props = both.get("/props?model=8B").json
        assert props["model_path"].endswith("pair-Q4_0.gguf")
        assert props["draft_model_path"].endswith("small-Q4_0.gguf")
        same = both.complete(max_tokens=40, temperature=0, model="pydoc").json["choices"][0]["text"]
        assert reply.json["choices"][0]["text"] == same

    def test_both_generate_at_the_same_time(self, both: Server) -> None:
        one = first_event(both.begin(model=TINY, stream=True, **ENDLESS))
        other = first_event(both.begin(model="pydoc", stream=True, **ENDLESS))
        slots = {name: both.get(f"/slots?model={name}").json for name in (TINY, "pydoc")}
        assert all(sum(s["is_processing"] for s in state) == 1 for state in slots.values()), slots
        both.hang_up()
        one.close()
        other.close()

    def test_tokenizing_uses_the_named_model(self, both: Server) -> None:
        ids = {m: both.post("/tokenize", {"content": "zip open", "model": m}).json for m in (TINY, "pydoc")}
        assert ids[TINY] != ids["pydoc"]
        for name, tokenized in ids.items():
            text = both.post("/detokenize", {"tokens": tokenized["tokens"], "model": name}).json
            assert text == {"content": "zip open"}
        by_query = both.post(f"/tokenize?model={TINY}", {"content": "zip open"}).json
        assert by_query == ids[TINY]
        prompt = both.post("/apply-template", {"messages": QUESTION, "model": TINY}).json["prompt"]
        assert prompt.startswith("<|im_start|>user")
        assert both.get(f"/health?model={TINY}").status == 200

    def test_metrics_name_the_model(self, both: Server) -> None:
        both.complete(model=TINY, max_tokens=3)
        text = both.get("/metrics").body.decode()
        assert f'specllama_generation_tokens_total{{model="{TINY}"}}' in text
        assert f'specllama_generation_tokens_total{{model="{PYDOC}"}}' in text
        assert text.count("# TYPE specllama_generation_tokens_total counter") == 1
        assert f'specllama_model_loaded{{model="{TINY}"}} 1.0' in text
        one = both.get(f"/metrics?model={TINY}").body.decode()
        assert f'model="{TINY}"' in one
        assert f'model="{PYDOC}"' not in one
        assert 'specllama_http_requests_total{path="/metrics"' in one


class TestFailingLoads:
    def test_the_request_gets_the_error_and_others_go_on(self, both: Server) -> None:
        running = first_event(both.begin(model="pydoc", stream=True, **ENDLESS))
        for stream in (False, True):
            reply = both.complete(model=BROKEN, stream=stream, max_tokens=1)
            assert (reply.status, "broken-Q8_0.gguf" in reply.error["message"]) == (503, True), reply.json
        assert both.post("/tokenize", {"content": "zip", "model": BROKEN}).status == 503
        assert both.get("/health").status == 200
        assert rest(running)[-1]["choices"][0]["finish_reason"] == "length"

    def test_an_engine_that_crashes_while_it_loads(self, both: Server) -> None:
        """The process is killed as soon as it exists. The first time the next request loads the model, later
        ones do not at once.
        """
        for _ in range(2):
            before = {p.pid for p in engines(both)}
            killer = threading.Thread(target=self._kill_next, args=(both, before))
            killer.start()
            reply = both.complete(model=CRASHING, max_tokens=1)
            killer.join()
            assert (reply.status, "SIGKILL" in reply.error["message"]) == (503, True), reply.json
        assert both.complete(model="pydoc", max_tokens=1).status == 200
        for stream in (False, True):
            reply = both.complete(model=CRASHING, stream=stream, max_tokens=1)
            assert (reply.status, "SIGKILL" in reply.error["message"]) == (503, True), reply.json
            assert "the last 2 loads failed" in reply.error["message"]
            assert 1 <= int(reply.headers["retry-after"]) <= 5
        said = [line for line in both.lines if f"{CRASHING} cannot be loaded" in line]
        assert len(said) == 2

    @staticmethod
    def _kill_next(server: Server, before: set[int]) -> None:
        """Kill the next engine that is started."""
        server.until(lambda: {p.pid for p in engines(server)} - before)
        for process in engines(server):
            if process.pid not in before:
                process.kill()

    def test_an_engine_that_crashes_later_is_restarted(self, both: Server) -> None:
        before = {p.pid for p in engines(both)}
        assert both.post("/models/unload", {"model": OTHER}).json == {"success": True}
        both.until(lambda: models(both)[OTHER] == "unloaded")
        both.complete(model=OTHER, max_tokens=1)
        (engine,) = [p for p in engines(both) if p.pid not in before]
        engine.send_signal(signal.SIGSEGV)
        both.until(lambda: both.get(f"/health?model={OTHER}").status == 503)
        assert both.get("/health?model=pydoc").status == 200
        both.until(lambda: both.complete(model=OTHER, max_tokens=1).status == 200, START)


class TestOneAfterTheOther:
    """Memory for one model."""

    def test_the_other_model_is_evicted(self, single: Server) -> None:
        for name in (TINY, PYDOC, OTHER):
            assert answered_by(single.complete(model=name, max_tokens=2)) == name
            assert loaded(single) == [name]
            assert len(engines(single)) == 1
        assert any(f"{TINY} is unloaded, to make room for {PYDOC}" in line for line in single.lines)

    def test_running_requests_finish_before_an_eviction(self, single: Server) -> None:
        running = first_event(single.begin(model=TINY, stream=True, **ENDLESS))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(single.complete, model=PYDOC, max_tokens=1)
            assert rest(running)[-1]["choices"][0]["finish_reason"] == "length"
            assert answered_by(waiting.result()) == PYDOC

    def test_a_client_that_disconnects_while_waiting_causes_no_eviction(self, single: Server) -> None:
        running = first_event(single.begin(model=TINY, stream=True, **ENDLESS))
        waiting = single.begin(model=PYDOC, prompt="x")
        single.until(lambda: single.samples()["specllama_texts_waiting"] == 1)
        waiting.close()
        single.until(lambda: single.samples()["specllama_texts_waiting"] == 0)
        assert single.complete(model=TINY, max_tokens=1).status == 200, "the door is open again"
        assert loaded(single) == [TINY]
        single.hang_up()
        running.close()
        single.until(lambda: single.samples()["specllama_texts_running"] == 0)
        assert loaded(single) == [TINY]

    def test_no_model_starves(self, single: Server) -> None:
        """Two clients want different models again and again, until each has had its turn several times."""
        turns = {TINY: 0, OTHER: 0}

        def client(name: str) -> None:
            while min(turns.values()) < 2:
                assert answered_by(single.complete(model=name, max_tokens=8)) == name
                turns[name] += 1

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(client, (TINY, TINY, OTHER)))  # the first model is never idle

    def test_waiters_for_one_model_share_one_load(self, single: Server) -> None:
        single.complete(model=PYDOC, max_tokens=1)
        n = sum(f"{TINY} is in memory" in line for line in single.lines)
        with ThreadPoolExecutor(4) as pool:
            statuses = list(pool.map(lambda _: single.complete(model=TINY, max_tokens=2).status, range(4)))
        assert statuses == [200] * 4
        assert sum(f"{TINY} is in memory" in line for line in single.lines) == n + 1

    def test_the_queue_is_bounded_during_a_load(self, single: Server) -> None:
        first_event(single.begin(model="pydoc", stream=True, n=2, **ENDLESS))
        single.begin(model=TINY, prompt="x", n=4, max_tokens=1)
        single.until(lambda: single.samples()["specllama_texts_waiting"] == 4)
        reply = single.complete(model=OTHER, max_tokens=1)
        assert (reply.status, reply.error["code"]) == (429, "queue_full"), reply.json
        single.hang_up()
        single.until(lambda: single.samples()["specllama_texts_waiting"] == 0)


class TestIdle:
    def test_an_idle_model_is_unloaded(self, tmp_path: Path, disk: Path) -> None:
        with several(tmp_path, disk, "--idle-unload", "0.5") as one:
            one.until(lambda: loaded(one) == [])
            assert engines(one) == []
            assert one.get("/health").status == 200
            assert one.get("/slots").json == []
            assert one.get("/props").json["model_path"].endswith("pydoc-target.gguf")
            assert one.get("/metrics").status == 200
            assert one.get("/props").json["is_sleeping"] is True
            assert engines(one) == [], "looking does not load"
            assert answered_by(one.complete(max_tokens=2)) == PYDOC
            long = one.complete(model=TINY, max_tokens=400, ignore_eos=True)
            assert answered_by(long) == TINY
            one.wait_for(f"{TINY} is unloaded, not used for ")

    def test_loading_and_unloading_by_request(self, both: Server) -> None:
        assert both.post("/models/load", {"model": OTHER}).json == {"success": True}
        assert OTHER in loaded(both)
        assert both.post("/models/unload", {"model": OTHER}).json == {"success": True}
        health = list[int]()

        def unloaded() -> bool:
            health.append(both.get(f"/health?model={OTHER}").status)
            return OTHER not in loaded(both)

        both.until(unloaded)
        assert set(health) == {200}, "it is not loading"
        both.wait_for(f"{OTHER} is unloaded, as a client asked")
        assert both.post("/models/unload", {"model": OTHER}).json == {"success": True}
        assert both.complete(model=OTHER, max_tokens=1).status == 200
        assert OTHER in loaded(both), "nobody has asked to unload it since"
        assert both.post("/models/load", {"model": "far-away"}).status == 404
        assert both.post("/models/load", {"model": BROKEN}).status == 503


class TestOllama:
    """Its clients list, load, keep and unload models."""

    def test_tags_are_the_models_on_disk(self, both: Server) -> None:
        tags = {m["name"]: m for m in both.get("/api/tags").json["models"]}
        assert {PYDOC, TINY, OTHER, PAIR} <= set(tags)
        assert "far-away" not in tags
        details = tags[OTHER]["details"]
        assert (details["family"], details["quantization_level"]) == ("llama", "F32")
        assert tags[OTHER]["size"] > 100_000
        assert BROKEN not in tags

    def test_showing_a_model_does_not_load_it(self, both: Server) -> None:
        """Copilot asks about each model in the list."""
        n_engines = len(engines(both))
        shown = both.post("/api/show", {"model": SMALL}).json
        assert shown["capabilities"] == ["completion", "tools"]
        assert shown["model_info"]["llama.context_length"] == 512
        assert shown["details"]["quantization_level"] == "Q4_0"
        assert (both.post("/api/show", {"model": BROKEN}).status, len(engines(both))) == (503, n_engines)
        for path in ("/v1/models", "/api/v0/models"):
            reply = both.get(f"{path}/{BROKEN}")
            assert (reply.status, "broken-Q8_0.gguf" in reply.error["message"]) == (503, True)

    def test_keep_alive(self, both: Server) -> None:
        def ask(**fields: Any) -> Any:
            return both.post("/api/generate", {"model": OTHER, "stream": False, **fields}).json

        def running() -> dict[str, Any]:
            return {m["name"]: m["expires_at"] for m in both.get("/api/ps").json["models"]}

        assert ask()["done_reason"] == "load"
        assert running()[OTHER].startswith("9999-")
        assert ask(prompt="zip", options={"num_predict": 2}, keep_alive="5m")["done_reason"] == "length"
        assert not running()[OTHER].startswith("9999-")
        assert ask(keep_alive=0)["done_reason"] == "unload"
        both.until(lambda: OTHER not in running())
        assert ask(prompt="zip", options={"num_predict": 2}, keep_alive=0)["done_reason"] == "length"
        both.until(lambda: OTHER not in running())
        reply = both.post("/api/chat", {"model": "far-away", "messages": QUESTION})
        assert (reply.status, reply.json["error"].startswith("model 'far-away' not found")) == (404, True)


class TestTheEnd:
    """All engine processes end with the server: these are the last tests of the servers that they share."""

    def test_kill_while_a_model_loads(self, both: Server) -> None:
        both.complete(model=TINY, max_tokens=1)
        both.post("/models/unload", {"model": OTHER})
        both.until(lambda: models(both)[OTHER] == "unloaded")
        n = len(engines(both))
        both.begin(model=OTHER, prompt="x")
        both.until(lambda: len(engines(both)) == n + 1)
        there = engines(both)
        both.process.kill()
        gone, alive = psutil.wait_procs(there, timeout=3)
        assert (len(gone), alive) == (n + 1, [])

    def test_keys_are_apart_and_a_drain_serves_waiting_requests(self, single: Server) -> None:
        with ThreadPoolExecutor(1) as threads:
            assert single.complete(model="pydoc", max_tokens=3).status == 200
            single.key = "second"
            assert single.complete(model=TINY, max_tokens=3).status == 200
            text = single.get("/metrics").body.decode()
            assert f'specllama_texts_total{{model="{TINY}"}} 1.0' in text
            assert f'specllama_texts_total{{model="{PYDOC}"}} 0.0' in text
            single.key = ""
            assert single.get("/v1/models").status == 401
            assert single.post("/models/load", {"model": TINY}).status == 401
            single.key = "first"
            first_event(single.begin(model="pydoc", stream=True, **ENDLESS))
            waiting = threads.submit(single.complete, model=TINY, max_tokens=3)
            single.until(lambda: single.samples()["specllama_texts_waiting"] == 1)
            there = engines(single)
            assert single.stop(signal.SIGTERM, START) == 143
            assert answered_by(waiting.result()) == TINY
            gone, alive = psutil.wait_procs(there, timeout=3)
            assert (len(gone), alive) == (1, [])
