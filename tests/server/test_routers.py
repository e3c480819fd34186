"""Two servers behind real routers: the APIs that pass, conversations, drains, servers that are killed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any

import pytest

from tests.support.agents import MODEL
from tests.support.routers import SECONDS, SMG, VLLM_ROUTER, Kind, Router, Workers, needs
from tests.support.serving import QUESTION, first_event

pytestmark = pytest.mark.timeout(3 * SECONDS)
SHORT: dict[str, Any] = {"model": MODEL, "seed": 1}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]},
    },
}
ENDLESS = {"model": MODEL, "prompt": "def ", "ignore_eos": True, "max_tokens": 60_000, "stream": True}
KINDS = [pytest.param(kind, marks=needs(kind), id=kind.program) for kind in (SMG, VLLM_ROUTER)]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("workers")) as made:
        yield made


@needs(SMG)
def test_a_chat_through_smg(tmp_path, workers: Workers) -> None:
    """The same text as from a server itself, in one piece and as a stream; nothing takes it for vLLM."""
    with Router(SMG, tmp_path, workers) as router:
        wanted = workers.servers[0].chat(**SHORT, max_tokens=24).json["choices"][0]["message"]
        assert router.chat(**SHORT, max_tokens=24).json["choices"][0]["message"] == wanted
        events = router.chat(**SHORT, max_tokens=24, stream=True).events
        deltas = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
        assert "".join(deltas) == wanted["content"]
        assert "registering as `generic`" in router.log.read_text("utf-8")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
class TestRouter:
    @pytest.fixture
    def router(self, kind: Kind, tmp_path, workers: Workers) -> Iterator[Router]:
        with Router(kind, tmp_path, workers) as made:
            yield made

    def test_every_api_that_passes(self, router: Router) -> None:
        called = router.chat(**SHORT, tools=[TOOL], tool_choice="required", max_tokens=80).json["choices"][0]
        assert called["message"]["tool_calls"][0]["function"]["name"] == "weather"
        assert router.complete(**SHORT, max_tokens=2).json["usage"]["completion_tokens"] == 2
        message = router.post("/v1/messages", {"model": MODEL, "messages": QUESTION, "max_tokens": 2})
        assert message.json["type"] == "message"
        response = router.post("/v1/responses", {"model": MODEL, "input": "zip", "max_output_tokens": 2})
        assert response.json["object"] == "response"
        count = router.post("/v1/messages/count_tokens", {"model": MODEL, "messages": QUESTION})
        assert count.json["input_tokens"] > 0

    def test_errors_keep_their_shape(self, router: Router) -> None:
        long = [{"role": "user", "content": "zip " * 5000}]
        refused = router.chat(long, model=MODEL)
        assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
        refused = router.post("/v1/messages", {"model": MODEL, "messages": QUESTION, "max_tokens": -1})
        assert (refused.status, refused.json["type"]) == (400, "error")
        assert router.chat(QUESTION, max_tokens=1).status == (200 if router.kind.anonymous else 400)
        native = router.post("/completion", {"prompt": "zip", "n_predict": 1})
        assert native.status == (200 if router.kind.anonymous else 404)

    def test_conversations_stay_where_their_prompt_is(self, router: Router) -> None:
        """Each turn reuses all of the one before it."""
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(lambda i: self.stays(router, i), range(8)))

    def stays(self, router: Router, i: int) -> bool:
        messages: list[dict[str, str]] = []
        before, session = 0, {"x-session-id": f"conversation {i}"}
        for turn in range(3):
            text = f"Conversation {i}, turn {turn}: what does zip do with names {'open read ' * 30}?"
            messages.append({"role": "user", "content": text})
            body = {**SHORT, "messages": messages, "max_tokens": 8}
            reply = router.post("/v1/chat/completions", body, headers=session)
            assert reply.status == 200, reply.body
            usage = reply.json["usage"]
            if usage["prompt_tokens_details"]["cached_tokens"] < before:
                return False
            before = usage["prompt_tokens"] - 1
            messages.append({"role": "assistant", "content": reply.json["choices"][0]["message"]["content"]})
        return True

    def test_a_rolling_restart_fails_no_request(self, router: Router, workers: Workers) -> None:
        failed, done, stop = [], [0], threading.Event()

        def client(i: int) -> None:
            while not stop.is_set():
                messages = [{"role": "user", "content": f"{i} {done[0]}: what does zip do?"}]
                reply = router.chat(messages, **SHORT, max_tokens=8, stream=bool(i % 2))
                if reply.status != 200 or b'"error"' in reply.body:
                    failed.append(reply)
                done[0] += 1

        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(client, i) for i in range(4)]
            try:
                for i in range(2):
                    n = done[0]
                    router.until(lambda n=n: done[0] > n + 8, SECONDS)
                    assert workers.servers[i].post("/drain", {}).status == 200
                    assert workers.servers[i].process.wait(SECONDS) == 0
                    workers.restart(i)
                    router.wait_for_workers(2)
            finally:
                stop.set()
            for one in running:
                one.result()
        assert failed == []

    def test_a_killed_server_ends_its_stream_and_comes_back(self, router: Router, workers: Workers) -> None:
        answer = first_event(router.begin(**ENDLESS))
        busy = next(i for i, server in enumerate(workers.servers) if server.n_busy())
        workers.servers[busy].process.kill()
        with contextlib.suppress(OSError, HTTPException):  # the router may close the connection
            rest = answer.read()
            assert b'"error"' in rest or not rest.endswith(b"data: [DONE]\n\n")
        router.until(lambda: router.chat(**SHORT, max_tokens=2).status == 200, SECONDS)
        workers.restart(busy)
        router.wait_for_workers(2)

    def test_without_a_server_it_says_so(self, kind: Kind, tmp_path) -> None:
        with Workers(tmp_path) as two, Router(kind, tmp_path, two) as router:
            for server in two.servers:
                assert server.post("/drain", {}).status == 200
            for server in two.servers:
                assert server.process.wait(SECONDS) == 0
            assert router.chat(**SHORT, max_tokens=2).status in (500, 502, 503)


@pytest.mark.long
@needs(SMG)
def test_two_models_behind_one_router(tmp_path) -> None:
    """smg sends a request to a server that has its model."""
    with Workers(tmp_path) as two:
        two.servers[1].__exit__()
        two.servers[1] = two._started("--alias", "other", "--strict-model")
        two.servers[1].__enter__()
        with Router(SMG, tmp_path, two) as router:
            router.until(lambda: len(router.get("/v1/models").json["data"]) == 2, SECONDS)
            for name in (MODEL, "other"):
                for _ in range(4):
                    assert router.chat(model=name, max_tokens=1).json["model"] == name
            assert router.chat(model="third", max_tokens=1).status == 404


@pytest.mark.long
@needs(SMG)
def test_keys_through_smg(tmp_path) -> None:
    """It lets in who has its own key of the servers."""
    with Workers(tmp_path, "--api-key", "one,two") as two, Router(SMG, tmp_path, two, "two") as router:
        statuses = {}
        for sent in ("two", "one", "wrong", ""):
            headers = {"authorization": f"Bearer {sent}"} if sent else {}
            body = {**SHORT, "messages": QUESTION, "max_tokens": 1}
            statuses[sent] = router.post("/v1/chat/completions", body, headers=headers).status
        assert statuses == {"two": 200, "one": 401, "wrong": 401, "": 401}
