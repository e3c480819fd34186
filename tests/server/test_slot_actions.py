"""What `POST /slots/N?action=` refuses, in llama-server's order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Command, assert_error
from tests.support.serving import Server


@pytest.fixture(scope="module")
def saving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("slots")
    with Server(tmp_path_factory.mktemp("saving"), "-np", "2", "--slot-save-path", str(folder)) as one:
        yield one


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/slots/x?action=save", {"filename": "a"}, "Invalid slot ID"),
        ("/slots/99999999999?action=save", {"filename": "a"}, "Invalid slot ID"),
        ("/slots/x?action=wrong", None, "Invalid slot ID"),
        ("/slots/0", {"filename": "a"}, "Invalid action"),
        ("/slots/0?action=", {"filename": "a"}, "Invalid action"),
        ("/slots/0?action=SAVE", {"filename": "a"}, "Invalid action"),
        ("/slots/7?action=save", {"filename": "../a"}, "Invalid filename"),
        ("/slots/0?action=restore", {"filename": "a/b"}, "Invalid filename"),
        ("/slots/0?action=restore", {"filename": ""}, "Invalid filename"),
        ("/slots/0?action=save", {"filename": "x" * 300}, "Invalid filename"),
        ("/slots/0?action=save", {}, "filename"),
        ("/slots/0?action=save", {"filename": 5}, "filename"),
        ("/slots/2?action=save", {"filename": "a"}, "Invalid slot ID"),
        ("/slots/-1?action=restore", {"filename": "a"}, "Invalid slot ID"),
        ("/slots/2?action=erase", None, "Invalid slot ID"),
    ],
)
def test_invalid_requests_are_refused(
    saving: Server, path: str, body: dict[str, Any] | None, message: str
) -> None:
    reply = saving.ask("POST", path, body)
    assert reply.status == 400, reply.body
    assert message in reply.error["message"]
    assert reply.error["type"] == "invalid_request_error"


def test_bodies_that_are_not_json(saving: Server) -> None:
    link = saving.connect()
    link.request("POST", "/slots/0?action=save", "no json", {})
    assert link.getresponse().status == 400
    link.close()


def test_the_path_must_be_a_directory(command: Command, tmp_path: Path) -> None:
    result = command("serve", "--slot-save-path", str(tmp_path / "nothing"))
    assert_error(result, 2, "--slot-save-path: there is no folder")
