"""System messages after the first turn, which agents send and few chat templates take."""

from __future__ import annotations

from typing import Any


def between_turns(text: str) -> dict[str, Any]:
    """Instructions between turns, as a message for the chat template: marked, and said by the user."""
    return {"role": "user", "content": f"<system>\n{text}\n</system>"}
