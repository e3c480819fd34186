"""Parts of the server by themselves."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import pytest
from starlette.requests import Request

from specllama.config.load import LoadSettings, ModelSettings
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import Sampler
from specllama.core.scheduler import FairQueue, next_to_fill
from specllama.core.sequence import Generation
from specllama.core.sequence import Request as Asked
from specllama.core.stats import PlainRate, RunStats
from specllama.errors import BusyError, EngineDiedError, SpecllamaError, UsageError
from specllama.server import main
from specllama.server.app import ERRORS
from specllama.server.dialects.fields import checked
from specllama.server.dialects.llama_server.requests import TokenizeRequest
from specllama.server.dialects.openai.usage import figures, usage
from specllama.server.events import Accumulator, End, Start, TextEvent
from specllama.server.http import body
from specllama.server.http.access import Keys, unexpected
from specllama.server.http.errors import BodyTooLargeError, BodyTooSlowError
from specllama.server.settings import ServerSettings

LOAD = LoadSettings(target=ModelSettings(path="a/model.gguf"), n_slots=2)


def generation(turn: int = 0) -> Generation:
    params = SamplingParams()
    return Generation(Asked([1], params, 0, turn=turn), Sampler(params, 0, 8), frozenset(), 16)


class TestLine:
    def test_one_after_the_other(self) -> None:
        line, waiting = FairQueue(), list[Generation]()
        made = [generation() for _ in range(5)]
        for one in made:
            line.join(waiting, one)
        assert [waiting.index(one) for one in made] == list(range(5))

    def test_a_request_of_many_does_not_keep_the_others_waiting(self) -> None:
        line, waiting = FairQueue(), list[Generation]()
        many = [generation(i) for i in range(8)]
        for one in many:
            line.join(waiting, one)
        late = generation()
        line.join(waiting, late)
        assert waiting.index(late) == 1
        assert [one for one in waiting if one is not late] == many

    def test_nobody_waits_for_ever(self) -> None:
        """However many newcomers there are, the last text of a request gets its turn."""
        line, waiting = FairQueue(), list[Generation]()
        last = generation(7)
        line.join(waiting, generation())
        line.join(waiting, last)
        passed = []
        while last in waiting:
            line.join(waiting, generation())
            passed.append(waiting.pop(0))
            assert len(passed) < 60
        assert len(passed) > 7

    def test_prompts_are_read_in_turn(self) -> None:
        long, short = generation(), generation()
        long.n_chunks = 3
        assert next_to_fill([long, short]) is short
        short.n_chunks = 3
        assert next_to_fill([long, short]) is long
        assert next_to_fill([]) is None


def end(index: int, **counters: object) -> End:
    return End(index, "stop", None, RunStats(**counters), PlainRate(None, "none", 0))  # type: ignore[arg-type]


class TestFigures:
    def test_of_two_prompts_with_two_choices(self) -> None:
        fold = Accumulator()
        for i in range(4):
            fold.add([Start(i, i // 2, 10 + i // 2, 1), TextEvent(i, "x")])
        stats = {"n_prompt": 10, "n_predict": 5, "n_drafted": 6, "n_accept": 3, "reached": [3, 2, 1]}
        fold.add(end(i, **stats, accepted_at=[2, 1, 0], n_reused=i) for i in range(4))
        found = usage(fold)
        assert (found["prompt_tokens"], found["completion_tokens"]) == (21, 20)
        assert found["prompt_tokens_details"]["cached_tokens"] == 0 + 2
        vllm = figures(fold, True)["metrics"]["speculative_decoding"]
        assert vllm["acceptance_histogram"] == [4, 4, 4, 0]
        assert vllm["num_spec_steps"] == 12

    def test_of_nothing(self) -> None:
        fold = Accumulator()
        fold.add([Start(0, 0, 1, 1), end(0)])
        found = figures(fold, False)
        assert found["timings"]["predicted_per_second"] == 0
        assert found["metrics"]["speculative_decoding"]["acceptance_histogram"] == [0]
        assert found["speculation"]["acceptance_rate"] is None


class TestErrors:
    @pytest.mark.parametrize(
        ("path", "keys"),
        [
            ("/v1/chat/completions", {"error"}),
            ("/v1/messages", {"type", "error", "request_id"}),
            ("/apix", {"error"}),
        ],
    )
    def test_shapes(self, path, keys) -> None:
        assert set(json.loads(ERRORS.response(UsageError("no"), path).body)) == keys

    def test_busy_says_when(self) -> None:
        error = BusyError("full", details={"retry_after": 7})
        response = ERRORS.response(error, "/v1/models")
        assert (response.status_code, response.headers["retry-after"]) == (429, "7")
        assert SpecllamaError.from_dict(error.to_dict()).details == {"retry_after": 7}
        assert json.loads(response.body)["error"]["code"] == "queue_full"
        gone = ERRORS.response(EngineDiedError("gone"))
        assert (gone.status_code, gone.headers["retry-after"]) == (503, "1")


class TestBodies:
    def read(self, parts, headers=(), seconds=30.0) -> TokenizeRequest:
        async def receive():
            return await anext(messages)

        async def sent():
            for part, more in parts:
                if part is None:
                    await asyncio.sleep(60)
                yield {"type": "http.request", "body": part, "more_body": more}

        messages = sent()
        scope = {"type": "http", "method": "POST", "headers": list(headers)}
        return asyncio.run(body.read(Request(scope, receive), partial(checked, TokenizeRequest), seconds))

    def test_in_parts(self) -> None:
        assert self.read([(b'{"content"', True), (b': "a"}', False)]).content == "a"

    def test_too_slow(self) -> None:
        with pytest.raises(BodyTooSlowError) as found:
            self.read([(b"{", True), (None, True)], seconds=0.05)
        assert found.value.http_status == 408

    def test_too_large(self) -> None:
        part = b"x" * (1024 * 1024)
        with pytest.raises(BodyTooLargeError):
            self.read([(part, True)] * 4 + [(b"x", False)])
        with pytest.raises(BodyTooLargeError):
            self.read([(part, True)] * 100)
        assert self.read([(b'{"content": "' + part + b'"}', False)]).content == part.decode()


class TestSettings:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.1.2.3"])
    def test_this_machine_needs_no_key(self, host: str) -> None:
        assert ServerSettings(load=LOAD, host=host).host == host

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])
    def test_others_do(self, host: str) -> None:
        with pytest.raises(UsageError, match="key"):
            ServerSettings(load=LOAD, host=host)
        assert "secret" not in repr(ServerSettings(load=LOAD, host=host, keys=("secret",)))

    def test_names(self) -> None:
        plain, named = ServerSettings(load=LOAD), ServerSettings(load=LOAD, names=("*", "a", "b"))
        assert (plain.name, plain.serves("model"), plain.serves("x")) == ("model", True, False)
        assert (named.name, named.serves("b"), named.serves("x")) == ("a", True, True)

    def test_no_keys_are_no_keys(self) -> None:
        assert not Keys(())


def test_an_unexpected_error_is_told_without_its_text() -> None:
    try:
        raise KeyError("my secret")
    except KeyError as error:
        said = unexpected(error)
    assert "KeyError in test_units.py, line" in said
    assert "secret" not in said


def test_a_port_that_is_not_for_everybody() -> None:
    assert "1024" in main._no_socket(PermissionError(13, "no"), "127.0.0.1", 80).hint
