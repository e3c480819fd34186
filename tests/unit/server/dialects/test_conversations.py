"""The same conversations in every API: the engine gets the same messages, and templates the same prompts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specllama.client import protocol
from specllama.server.dialects.anthropic import MessagesRequest
from specllama.server.dialects.ollama import OllamaChatRequest
from specllama.server.dialects.openai.responses.request import ResponsesRequest
from specllama.server.dialects.openai.routes import ChatRequest
from specllama.server.dialects.shared.fields import checked
from tests.support.conversation_table import CONTINUED, SIXTY
from tests.support.conversations import (
    WRITERS,
    Conversation,
)
from tests.support.generations import text_only
from tests.support.rendering import Rendering
from tests.support.strict_templates import TEMPLATES

MODELS: dict[str, Any] = {
    "chat": ChatRequest,
    "responses": ResponsesRequest,
    "messages": MessagesRequest,
    "ollama": OllamaChatRequest,
}


def asked(api: str, body: dict[str, Any]) -> protocol.Generate:
    """The engine's request for a body of an API."""
    return text_only(checked(MODELS[api], body)).generations({}, {})[0]


RENDERINGS = {name: Rendering(source) for name, source in TEMPLATES.items()}


def test_there_are_sixty() -> None:
    assert len(SIXTY) >= 60
    assert len({one.name for one in SIXTY}) == len(SIXTY)


@pytest.mark.parametrize("conversation", SIXTY + CONTINUED, ids=lambda conversation: conversation.name)
def test_every_api_reads_a_conversation_alike(conversation: Conversation) -> None:
    apis = [api for api in WRITERS if not (conversation.continues and api == "responses")]
    requests = {api: asked(api, json.loads(json.dumps(WRITERS[api](conversation)))) for api in apis}
    first = requests["chat"]
    assert first.chat is not None
    for api, other in requests.items():
        assert (other.chat.messages, other.chat.prefix, other.chat.prefix_thought) == (
            first.chat.messages, first.chat.prefix, first.chat.prefix_thought
        ), api  # fmt: skip
    for name, rendering in RENDERINGS.items():
        prompts = {api: rendering.prompt(other.chat.messages or []) for api, other in requests.items()}
        assert len(set(prompts.values())) == 1, (name, prompts)
