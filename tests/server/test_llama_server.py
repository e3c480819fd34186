"""What llama-server's clients read besides the OpenAI routes."""

from __future__ import annotations

import pytest

from tests.support.serving import QUESTION, Server, first_event


def test_models_for_both_sdks(server: Server) -> None:
    listing = server.get("/v1/models").json
    (only,) = listing["data"]
    assert listing["object"] == "list"
    assert (listing["first_id"], listing["last_id"], listing["has_more"]) == (only["id"], only["id"], False)
    assert only["type"] == only["object"] == "model"
    assert only["meta"]["n_vocab"] == 4096
    assert only["created_at"].endswith("+00:00")
    assert server.get("/v1/models/pydoc-target").json == only


def test_props(server: Server) -> None:
    props = server.get("/props").json
    assert props["total_slots"] == 4
    assert props["model_path"].endswith("pydoc-target.gguf")
    assert "<|im_start|>" in props["chat_template"]
    settings = props["default_generation_settings"]
    assert settings["n_ctx"] == 2048
    assert settings["params"]["temperature"] == 0.8
    assert props["chat_template_caps"]["supports_tool_calls"] is True  # what Zed's agent looks for
    described = {one["name"]: one for one in props["sampling_parameters"]}
    assert set(described) <= set(settings["params"]) | {"infill_sampling"}
    assert described["top_p"] == {
        "name": "top_p", "type": "number", "many": False, "minimum": 0, "maximum": 1,
        "description": "share of probability kept (default 0.95, 1 off)",
    }  # fmt: skip
    assert server.chat(max_tokens=1, top_p=described["top_p"]["maximum"]).status == 200


def test_slots_show_activity_but_not_the_prompt(server: Server) -> None:
    first_event(server.begin(prompt="a secret prompt", stream=True, ignore_eos=True, max_tokens=900))
    reply = server.get("/slots")
    (busy,) = [slot for slot in reply.json if slot["is_processing"]]
    assert busy["next_token"][0]["n_decoded"] > 0
    assert len(reply.json) == 4
    assert b"secret" not in reply.body
    server.hang_up()
    server.until(lambda: server.n_busy() == 0)


def test_tokenize_and_detokenize_round_trip(server: Server) -> None:
    text = "déf read(😀)"
    ids = server.post("/tokenize", {"content": text}).json["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json == {"content": text}
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True}).json["tokens"]
    assert [piece["id"] for piece in pieces] == ids
    data = b"".join(
        bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces
    )
    assert data.decode() == text
    assert server.post("/tokenize", {"content": ""}).json == {"tokens": []}
    assert server.post("/detokenize", {"tokens": []}).json == {"content": ""}
    (special,) = server.post("/tokenize", {"content": "<|im_end|>"}).json["tokens"]
    assert len(server.post("/tokenize", {"content": "<|im_end|>", "parse_special": False}).json["tokens"]) > 1
    assert server.post("/detokenize", {"tokens": [special]}).json["content"] == "<|im_end|>"
    assert server.post("/detokenize", {"tokens": [4096]}).status == 400


def test_the_template_is_applied(server: Server) -> None:
    prompt = server.post("/apply-template", {"messages": QUESTION}).json["prompt"]
    assert prompt.startswith("<|im_start|>user\nWhat does")
    assert prompt.endswith("<|im_start|>assistant\n")


def test_health(server: Server) -> None:
    assert server.get("/health").json == {"status": "ok"}
    assert server.ask("HEAD", "/health").status == 200


def test_the_openapi_document_names_every_route(server: Server) -> None:
    document = server.get("/openapi.json").json
    assert {"/v1/chat/completions", "/v1/completions", "/health", "/slots", "/tokenize"} <= set(
        document["paths"]
    )
    refs = str(document).split("#/components/schemas/")[1:]
    assert {ref.split("'")[0] for ref in refs} <= set(document["components"]["schemas"])
    chat = document["components"]["schemas"]["ChatRequest"]
    assert "response_format" in chat["properties"]
    assert chat["required"] == ["messages"]


def test_routes_without_v1(server: Server) -> None:
    asked = {"max_tokens": 4, "seed": 1}
    whole = server.post("/chat/completions", {"messages": QUESTION, **asked}).json
    assert whole["object"] == "chat.completion"
    assert whole["choices"] == server.chat(**asked).json["choices"]
    assert server.get("/models").json == server.get("/v1/models").json
    assert server.get("/models/pydoc-target").json["id"] == "pydoc-target"
    assert server.get("/models/nope").status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/audio/transcriptions"),
        ("POST", "/v1/audio/transcriptions"),
        ("POST", "/props"),
        ("POST", "/slots/0?action=save"),
        ("GET", "/lora-adapters"),
        ("POST", "/lora-adapters"),
    ],
)
def test_routes_that_are_not_supported(server: Server, method: str, path: str) -> None:
    reply = server.ask(method, path, {} if method == "POST" else None)
    assert reply.status == 501
    assert (reply.error["code"], reply.error["param"]) == ("unsupported", None)
    assert reply.error["type"] == "not_supported_error"
    assert reply.headers["x-should-retry"] == "false"
    assert len(reply.error["message"]) > 20


def test_what_editors_read_in_props(server: Server) -> None:
    props = server.get("/props").json
    assert props["chat_template_caps"]["supports_tool_calls"] is True
    assert props["modalities"] == {"vision": False, "audio": False, "video": False}
    assert (props["is_sleeping"], props["endpoint_slots"], props["endpoint_props"]) == (False, True, False)
    params = props["default_generation_settings"]["params"]
    assert {"n_predict", "seed", "top_k", "typical_p", "dry_multiplier", "samplers", "lora"} <= set(params)
    assert server.get("/v1/models").json["data"][0]["meta"]["n_ctx"] == 2048


def test_no_slot_is_free(exact: Server) -> None:
    assert exact.get("/slots?fail_on_no_slot=1").status == 200
    first_event(exact.begin(prompt="x", stream=True, ignore_eos=True, max_tokens=480))
    reply = exact.get("/slots?fail_on_no_slot=1")
    assert (reply.status, reply.error["type"]) == (503, "unavailable_error")
    assert exact.get("/slots").status == 200
    exact.hang_up()
    exact.until(lambda: exact.n_busy() == 0)
