"""Faults of a running server: disconnecting clients, full queues, dying engines, signals."""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.support.serving import QUESTION, SOON, Server, first_event, rest

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals"),
]
FREE = 2.0  # seconds until a slot is free: one, and one more for a busy machine
ENDLESS = {"prompt": "def ", "ignore_eos": True, "max_tokens": 60_000}
LARGE = ("-c", "65536", "--draft-max", "0")
COMPLETIONS = "/v1/completions"
_ASKED = {"messages": QUESTION, "max_tokens": 1}
OF_EACH_DIALECT = {
    "/v1/chat/completions": _ASKED,
    "/v1/messages": _ASKED,
    "/v1/responses": {"input": "zip"},
    "/api/chat": _ASKED,
    "/completion": {"prompt": "zip"},
}


@pytest.mark.alone  # depends on timing
class TestDisconnect:
    @pytest.mark.parametrize("stream", [True, False])
    def test_during_decode(self, small: Server, stream: bool) -> None:
        link = small.begin(**ENDLESS, stream=stream)
        if stream:
            first_event(link)
        small.until(lambda: small.n_busy() == 1)
        link.close()
        assert small.until(lambda: small.n_busy() == 0) < FREE

    @pytest.mark.parametrize("stream", [True, False])
    def test_during_prefill(self, small: Server, stream: bool) -> None:
        link = small.begin(prompt="zip open " * 12_000, stream=stream)
        small.until(lambda: small.n_busy() == 1, seconds=30)
        link.close()
        assert small.until(lambda: small.n_busy() == 0) < FREE

    def test_while_waiting(self, small: Server) -> None:
        running, waiting = small.begin(**ENDLESS), small.begin(**ENDLESS)
        small.until(lambda: small.samples()["specllama_texts_waiting"] == 1)
        waiting.close()
        small.until(lambda: small.samples()["specllama_texts_waiting"] == 0, FREE)
        assert small.n_busy() == 1
        running.close()
        small.until(lambda: small.n_busy() == 0, FREE)

    def test_before_the_body_has_arrived(self, small: Server) -> None:
        with socket.create_connection((small.host, small.port)) as link:
            link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        small.wait_for("POST /v1/completions", SOON)
        assert small.get("/health").status == 200

    def test_a_client_that_reads_nothing_does_not_block_others(self, small: Server) -> None:
        with socket.socket() as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.connect((small.host, small.port))
            body = json.dumps({**ENDLESS, "stream": True, "max_tokens": 500}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            link.sendall(head.encode() + body)
            small.until(lambda: small.n_busy() == 1)
            assert small.complete(max_tokens=2).status == 200
        small.until(lambda: small.n_busy() == 0, FREE)


class TestQueue:
    def test_a_full_queue_gives_429(self, small: Server) -> None:
        links = [small.begin(**ENDLESS) for _ in range(3)]
        small.until(lambda: small.samples()["specllama_texts_waiting"] == 2)
        reply = small.complete(max_tokens=1)
        assert reply.status == 429
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        assert reply.error["code"] == "queue_full"
        assert small.get("/health").status == 200
        for link in links:
            link.close()
        small.until(lambda: small.n_busy() == 0, FREE)
        assert small.complete(max_tokens=1).status == 200

    def test_queue_time_is_counted_for_requests_that_got_a_slot(self, small: Server) -> None:
        """A request that is cancelled in the queue is not counted."""
        before = small.samples()
        running, leaving, waiting = (small.begin(**ENDLESS, stream=True) for _ in range(3))
        small.until(lambda: small.samples()["specllama_texts_waiting"] == 2)
        leaving.close()
        time.sleep(0.2)
        running.close()
        first_event(waiting)
        waiting.close()
        small.until(lambda: small.samples()["specllama_texts_running"] == 0, FREE)
        after = small.samples()
        grown = {n: after[n] - before[n] for n in after if n.startswith("specllama_queue_seconds_")}
        assert grown["specllama_queue_seconds_count"] == 2
        assert grown["specllama_queue_seconds_sum"] >= 0.2
        assert grown['specllama_queue_seconds_bucket{le="0.1"}'] == 1

    def test_a_single_request_may_exceed_the_queue(self, small: Server) -> None:
        assert len(small.complete(max_tokens=1, n=8).json["choices"]) == 8

    def test_many_clients_get_an_answer_or_429(self, tmp_path) -> None:
        """Every request is answered, or rejected at once."""
        with Server(tmp_path, "--queue", "30", "-c", "4096", "--draft-max", "2") as one:
            ask = lambda seed: one.complete(max_tokens=6, seed=seed, temperature=1)  # noqa: E731
            with ThreadPoolExecutor(200) as pool:
                replies = list(pool.map(ask, range(200)))
            statuses = [reply.status for reply in replies]
            assert set(statuses) <= {200, 429}
            assert statuses.count(200) >= 34
            assert all(reply.json["choices"][0]["text"] for reply in replies if reply.status == 200)
            assert all(int(reply.headers["retry-after"]) >= 1 for reply in replies if reply.status == 429)
            assert one.samples()["specllama_texts_running"] == 0


class TestDeadline:
    def test_it_applies_before_and_after_the_first_byte(self, tmp_path) -> None:
        with Server(tmp_path, "--timeout", "1.5", "-np", "1", *LARGE) as one:
            reply = one.complete(**ENDLESS)
            assert reply.status == 504
            assert reply.error["type"] == "timeout_error"
            one.until(lambda: one.n_busy() == 0, FREE)
            events = rest(first_event(one.begin(**ENDLESS, stream=True)))
            assert events[-1]["error"]["code"] == "deadline_exceeded"
            one.until(lambda: one.n_busy() == 0, FREE)
            assert one.complete(max_tokens=1).status == 200


class TestEngine:
    def test_it_is_restarted_when_it_dies(self, tmp_path) -> None:
        with Server(tmp_path, "-np", "1", *LARGE) as one:
            streaming = first_event(one.begin(**ENDLESS, stream=True))
            waiting = [one.begin(**ENDLESS, stream=stream) for stream in (True, False)]
            one.until(lambda: one.samples()["specllama_texts_waiting"] == 2)
            for n in (1, 2):
                engine = one.engine()
                engine.kill()
                assert one.until(lambda: one.get("/health").status == 503) < 1.0 + FREE
                if n == 1:
                    last = rest(streaming)[-1]
                    assert last["error"]["type"] == "unavailable_error"
                    assert "SIGKILL" in last["error"]["message"]
                    for link in waiting:
                        answer = link.getresponse()
                        assert answer.status == 503
                        assert b"SIGKILL" in answer.read()
                assert "another one is started" in one.wait_for("SIGKILL", SOON)
                one.until(lambda: one.get("/health").status == 200, 60)
                assert one.complete(max_tokens=2).json["usage"]["completion_tokens"] == 2
                assert one.engine().pid != engine.pid
            assert one.samples()["specllama_engine_restarts"] == 2

    def test_health_reports_that_it_hangs(self, tmp_path) -> None:
        """/health reports it soon, and always responds at once."""
        with Server(tmp_path, "-np", "1") as one:
            engine = one.engine()
            engine.suspend()
            try:
                one.until(lambda: one.get("/health").status == 503, 30)
                began = time.monotonic()
                assert "sent nothing" in one.get("/health").json["error"]["message"]
                assert one.get("/metrics").status == 200
                assert time.monotonic() - began < FREE
            finally:
                engine.resume()
            one.until(lambda: one.get("/health").status == 200, SOON)

    def test_it_ends_when_the_front_is_killed(self, tmp_path) -> None:
        with Server(tmp_path, "-np", "1", *LARGE) as one:
            first_event(one.begin(**ENDLESS, stream=True))
            engine = one.engine()
            one.process.kill()
            one.until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE, FREE)


class TestSignals:
    def test_sigterm_lets_running_requests_end(self, tmp_path) -> None:
        with Server(tmp_path, "-np", "1", *LARGE) as one:
            request = {"prompt": "def ", "ignore_eos": True, "max_tokens": 400}
            running, waiting = one.begin(**request, stream=True), one.begin(**request)
            answer = first_event(running)
            one.until(lambda: one.samples()["specllama_texts_waiting"] == 1)
            engine = one.engine()
            one.process.send_signal(signal.SIGTERM)
            one.wait_for("no new requests", SOON)
            assert rest(answer)[-1]["choices"][0]["finish_reason"] == "length"
            late = waiting.getresponse()
            assert (late.status, json.loads(late.read())["usage"]["completion_tokens"]) == (200, 400)
            assert one.process.wait(SOON) == 143
            one.until(lambda: not engine.is_running())
            assert not any("Traceback" in line for line in one.lines)

    def test_a_drain_refuses_and_a_second_signal_ends_it(self, tmp_path) -> None:
        with Server(tmp_path, "-np", "1", *LARGE) as one:
            answer = first_event(one.begin(**ENDLESS, stream=True))
            assert one.post("/drain", {}).json == {"status": "draining", "requests": 1, "seconds": 30.0}
            one.wait_for("no new requests", SOON)
            one.process.send_signal(signal.SIGTERM)  # as after a hook that drains: running requests go on
            one.process.send_signal(signal.SIGHUP)
            for path, body in OF_EACH_DIALECT.items():
                refused = one.post(path, body)
                assert (refused.status, refused.headers["retry-after"]) == (503, "1"), path
                assert (refused.json.get("type") == "error") == (path == "/v1/messages")
                error = refused.json["error"]
                assert "shutting down" in (error if path == "/api/chat" else error["message"])
            health = [one.get(f"/health{end}").status for end in ("", "/live", "/ready", "?ready")]
            assert health == [200, 200, 503, 503]
            assert answer.readline() == b"\n"
            assert answer.readline().startswith(b"data: {")
            one.process.send_signal(signal.SIGTERM)
            assert one.process.wait(SOON) in (129, 143)  # of the first two, whichever is handled first

    def test_a_drain_by_request(self, tmp_path) -> None:
        """It needs a key that may do it, ends with the last request, and the exit code is 0."""
        with Server(tmp_path, "-np", "1", *LARGE, "--api-key", "admin,user", "--open-metrics") as one:
            assert ("specllama_kv_used_ratio" in one.samples(), one.get("/slots").status) == (True, 401)
            one.key = "user"
            first_event(one.begin(**ENDLESS, stream=True))
            refused = one.post("/drain", {})
            assert (refused.status, "may not drain" in refused.error["message"]) == (403, True)
            assert one.get("/health/ready").status == 200
            one.key = "admin"
            for _ in range(2):
                assert one.post("/drain", {}).json["status"] == "draining"
            assert one.process.poll() is None
            one.hang_up()
            assert one.process.wait(SOON) == 0

    def test_a_closed_terminal_drains_with_a_time_limit(self, tmp_path) -> None:
        with Server(tmp_path, "-np", "1", "--drain", "0.5", *LARGE) as one:
            answer = first_event(one.begin(**ENDLESS, stream=True))
            one.process.send_signal(signal.SIGHUP)
            assert "shutting down" in rest(answer)[-1]["error"]["message"]
            assert one.process.wait(SOON) == 129

    @pytest.mark.parametrize("busy", [False, True])
    def test_ctrl_c(self, tmp_path, busy: bool) -> None:
        with Server(tmp_path, "-np", "1", *LARGE) as one:
            if busy:
                first_event(one.begin(**ENDLESS, stream=True))
            one.process.send_signal(signal.SIGINT)
            if busy:
                assert one.wait_for("no new requests", SOON).endswith(", Ctrl-C again ends it at once")
                assert one.process.poll() is None
                one.process.send_signal(signal.SIGINT)
            assert one.process.wait(SOON) == 130
            assert not any("Traceback" in line for line in one.lines)

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    def test_while_it_loads(self, tmp_path, number: int, code: int) -> None:
        one = Server(tmp_path, "-np", "1")
        try:
            one.until(lambda: psutil.Process(one.process.pid).children(), 60)
            assert one.stop(number) == code
        finally:
            one.__exit__()
        assert not any("Traceback" in line for line in one.lines)


@pytest.mark.alone
def test_health_responds_under_load(tmp_path) -> None:
    """/health never waits for the engine."""
    with Server(tmp_path, *LARGE) as one:
        links = [one.begin(prompt="zip open " * 5000, max_tokens=5) for _ in range(6)]
        stop, slowest = threading.Event(), [0.0]

        def poll_health() -> None:
            while not stop.is_set():
                began = time.monotonic()
                assert one.get("/health").status == 200
                slowest[0] = max(slowest[0], time.monotonic() - began)

        thread = threading.Thread(target=poll_health)
        thread.start()
        one.until(lambda: one.n_busy() >= 1, 60)
        time.sleep(1)
        stop.set()
        thread.join()
        for link in links:
            link.close()
        assert slowest[0] < FREE
