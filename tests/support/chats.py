"""`specllama chat` in tests: its lines through a pipe, and the files that it writes."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest

from tests.support.command import Command, Result

FEW = ("--no-calibrate", "-s", "3", "-n", "24")
LINE = r"prompt (\d+) evaluated, (\d+) reused"
GOES_ON = r"saved: specllama chat --continue \S.* goes on with it"
GREEN, CYAN, DIM = "\x1b[32m", "\x1b[36m", "\x1b[2m"
pty = pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs pseudo-terminals")


def chat(command: Command, *lines: str, args: tuple[str, ...] = FEW, **more: Any) -> Result:
    """The lines through a pipe."""
    result = command("chat", *args, stdin="".join(f"{line}\n" for line in lines).encode(), **more)
    assert "Traceback" not in result.err
    assert "\x1b" not in result.err
    return result


def prompts(text: str) -> list[tuple[int, int]]:
    """Prompt tokens (evaluated, reused) of each answer."""
    return [(int(a), int(b)) for a, b in re.findall(LINE, text)]


def saved(command: Command, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((command.home / name).read_text())
    return content


def messages(command: Command, name: str) -> list[str]:
    return [message["content"] for message in saved(command, name)["messages"]]


def in_library(command: Command) -> dict[str, Any]:
    """The one conversation that was saved as it went."""
    (path,) = (command.home / "data" / "chats").glob("*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def no_library(command: Command) -> None:
    """Make conversations not be saved as they go."""
    (command.home / "data").write_text("a file where the directory should be")
