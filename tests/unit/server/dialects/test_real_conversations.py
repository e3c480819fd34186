"""The sixty conversations with the chat templates of real models: none is refused, and no template loses what
a user or the instructions say. For the templates see tests/unit/calls/test_real_templates.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from specllama.server.dialects.openai.routes import ChatRequest
from specllama.server.dialects.shared.fields import checked
from tests.support.conversation_table import CONTINUED, SIXTY
from tests.support.conversations import WRITERS
from tests.support.rendering import Rendering
from tests.support.templates import FOLDER, SOURCES

pytestmark = pytest.mark.skipif(not SOURCES, reason=f"no templates in {FOLDER}: scripts/fetch_templates.py")
READ = [(one.name, checked(ChatRequest, WRITERS["chat"](one)).turns.messages) for one in SIXTY + CONTINUED]
UNPRINTED = ("<|im_end|>", "\u2028")  # texts that are written in another form


@pytest.mark.parametrize("name", sorted(SOURCES) or ["none"])
def test_nothing_is_refused_or_lost(name: str) -> None:
    more: dict[str, Any] = {"functions": "[]", "datetime": "today"} if "firefunction" in name else {}
    rendering = Rendering(SOURCES[name], **more)
    for conversation, messages in READ:
        prompt = rendering.prompt(messages)
        said = [m["content"].strip() for m in messages if m["role"] in ("user", "system")]
        lost = [one for one in said if one not in prompt and not any(part in one for part in UNPRINTED)]
        assert not lost, conversation
