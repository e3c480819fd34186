"""Error responses, bodies and keys, without a server."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import pytest
from starlette.requests import Request

from specllama.errors import (
    AccessError,
    BusyError,
    ContextLengthError,
    DeadlineError,
    EngineDiedError,
    NotFoundError,
    SpecllamaError,
    UsageError,
)
from specllama.server.app import ERRORS, ROUTES
from specllama.server.dialects.llama_server.routes import TokenizeRequest
from specllama.server.dialects.shared.fields import checked
from specllama.server.http.access import Keys, unexpected
from specllama.server.http.body import BodyReader, parse
from specllama.server.http.errors import HttpError


class TestErrors:
    @pytest.mark.parametrize(
        ("path", "keys"),
        [
            ("/v1/chat/completions", {"error"}),
            ("/v1/messages", {"type", "error", "request_id"}),
            ("/apix", {"error"}),
        ],
    )
    def test_an_error_has_the_shape_of_its_dialect(self, path, keys) -> None:
        assert set(json.loads(ERRORS.response(UsageError("no"), path).body)) == keys

    def test_busy_says_when_to_retry(self) -> None:
        error = BusyError("full", details={"retry_after": 7})
        response = ERRORS.response(error, "/v1/models")
        assert (response.status_code, response.headers["retry-after"]) == (429, "7")
        assert SpecllamaError.from_dict(error.to_dict()).details == {"retry_after": 7}
        assert json.loads(response.body)["error"]["code"] == "queue_full"
        gone = ERRORS.response(EngineDiedError("gone"))
        assert (gone.status_code, gone.headers["retry-after"]) == (503, "1")

    def test_the_path_decides_the_dialect(self) -> None:
        error = NotFoundError("gone")
        anthropic = json.loads(ERRORS.response(error, "/v1/messages/batches", "req_1").body)
        shown = {"type": "not_found_error", "message": "gone"}
        assert anthropic == {"type": "error", "error": shown, "request_id": "req_1"}
        assert json.loads(ERRORS.response(error, "/api/chat").body) == {"error": "gone"}
        openai = json.loads(ERRORS.response(error, "/v1/messagesx").body)["error"]
        assert (openai["type"], openai["code"]) == ("not_found_error", "model_not_found")

    @pytest.mark.parametrize(
        ("error", "kind", "code"),
        [
            (UsageError("no"), "invalid_request_error", None),
            (ContextLengthError("no"), "exceed_context_size_error", "context_length_exceeded"),
            (AccessError("no"), "authentication_error", "invalid_api_key"),
            (HttpError(404, "no"), "not_found_error", None),
            (HttpError(405, "no"), "invalid_request_error", None),
            (HttpError(421, "no"), "invalid_request_error", None),
            (HttpError(403, "no"), "permission_error", None),
            (HttpError(413, "no"), "request_too_large", None),
            (HttpError(408, "no"), "timeout_error", None),
            (DeadlineError("no"), "timeout_error", "deadline_exceeded"),
            (EngineDiedError("no"), "unavailable_error", None),
            (SpecllamaError("no"), "server_error", None),
        ],
    )
    def test_each_error_has_its_type_and_code(
        self, error: SpecllamaError, kind: str, code: str | None
    ) -> None:
        response = ERRORS.response(error)
        shown = json.loads(response.body)["error"]
        assert (response.status_code, shown["type"], shown["code"]) == (error.http_status, kind, code)

    def test_the_connection_is_closed_if_the_body_was_not_read(self) -> None:
        assert ERRORS.response(HttpError(413, "no")).headers["connection"] == "close"
        assert "connection" not in ERRORS.response(UsageError("no")).headers
        assert ERRORS.response(EngineDiedError("no"), close=True).headers["connection"] == "close"

    def test_a_method_error_names_the_allowed_methods(self) -> None:
        assert ERRORS.response(HttpError(405, "no", details={"allow": "GET"})).headers["allow"] == "GET"


def request(parts, headers=()) -> Request:
    """A request with a body in parts, each with whether more follows; None for one that never comes."""

    async def sent():
        for part, more in parts:
            if part is None:
                await asyncio.sleep(60)
            yield {"type": "http.request", "body": part, "more_body": more}

    messages = sent()
    return Request({"type": "http", "method": "POST", "headers": list(headers)}, lambda: anext(messages))


class TestBodies:
    def read(self, parts, headers=(), seconds=30.0) -> TokenizeRequest:
        async def received() -> TokenizeRequest:
            check = partial(checked, TokenizeRequest)
            return await BodyReader().read(request(parts, headers), check, seconds)

        return asyncio.run(received())

    def test_a_body_may_come_in_parts(self) -> None:
        assert self.read([(b'{"content"', True), (b': "a"}', False)]).content == "a"

    def test_a_slow_body_is_refused(self) -> None:
        with pytest.raises(HttpError) as raised:
            self.read([(b"{", True), (None, True)], seconds=0.05)
        assert raised.value.http_status == 408

    def test_a_large_body_is_refused(self) -> None:
        part = b"x" * (1024 * 1024)
        with pytest.raises(HttpError, match="more than"):
            self.read([(part, True)] * 4 + [(b"x", False)])
        with pytest.raises(HttpError, match="more than"):
            self.read([(part, True)] * 100)
        assert self.read([(b'{"content": "' + part + b'"}', False)]).content == part.decode()

    @pytest.mark.parametrize(
        ("item", "n", "needle"),
        [
            ("-1", 300_000, "values"),
            ('""', 100_000, "texts"),
            (r'"\",\""', 100_000, "texts"),
            ("[]", 20_000, "lists"),
            ("{}", 60_000, "objects"),
        ],
    )
    def test_a_body_of_too_many_values_is_refused_before_parsing(
        self, item: str, n: int, needle: str
    ) -> None:
        body = f'{{"content": [{", ".join([item] * n)}]}}'.encode()
        with pytest.raises(UsageError, match=needle):
            self.read([(body, False)])

    @pytest.mark.parametrize("content", ["[{," * 30_000, '\\"' * 70_000, "\\\\" * 50_000 + ",,"])
    def test_the_content_of_strings_does_not_count(self, content: str) -> None:
        assert self.read([(json.dumps({"content": content}).encode(), False)]).content == content

    def test_large_bodies_that_arrive_at_once_are_bounded(self, monkeypatch) -> None:
        monkeypatch.setattr("specllama.server.http.body.MAX_HELD", 300_000)
        part = json.dumps({"content": "x" * 200_000}).encode()

        async def both() -> list[object]:
            reader = BodyReader()
            tasks = [reader.read(request([(part, False)]), dict, 30.0) for _ in range(2)]
            outcomes: list[object] = await asyncio.gather(*tasks, return_exceptions=True)
            again = await reader.read(request([(part, False)]), dict, 30.0)
            assert len(again["content"]) == 200_000
            return outcomes

        first, second = asyncio.run(both())
        assert isinstance(first, dict)
        assert isinstance(second, BusyError)


def test_every_list_and_object_of_a_body_has_a_bound() -> None:
    def walk(value: object, path: str) -> None:
        if isinstance(value, list):
            for i, one in enumerate(value):
                walk(one, f"{path}[{i}]")
        elif isinstance(value, dict):
            if value.get("type") == "array":
                assert value["maxItems"] <= 2**18, path
            if value.get("type") == "object" and value.get("additionalProperties", True) is not False:
                assert "maxProperties" in value or "x-max-characters" in value, path
            for name, one in value.items():
                walk(one, f"{path}.{name}")

    for route in ROUTES:
        if route.body is not None:
            walk(route.body.model_json_schema(), route.path)


def test_empty_keys_are_falsy() -> None:
    assert not Keys(())


def test_an_unexpected_error_is_described_without_its_text() -> None:
    try:
        raise KeyError("my secret")
    except KeyError as error:
        text = unexpected(error)
    assert "KeyError in test_http.py, line" in text
    assert "secret" not in text


def test_a_number_of_thousands_of_digits() -> None:
    with pytest.raises(UsageError) as failed:
        parse(b'{"seed": %s}' % (b"1" * 5000))
    assert failed.value.message == "the body is not JSON: it has a number of thousands of digits"
