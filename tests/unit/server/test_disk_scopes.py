"""Whose prompts on disk are whose, what a request says of keeping its own, and names of files for slots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specllama.config.load import AUTO, LoadSettings, ModelSettings
from specllama.errors import UsageError
from specllama.prefix_disk.scopes import LOCAL, OPEN, SHARED
from specllama.server.dialects.anthropic import MessagesRequest
from specllama.server.dialects.llama_server.completion import NativeRequest
from specllama.server.dialects.llama_server.routes import is_file_name
from specllama.server.dialects.ollama import OllamaChatRequest
from specllama.server.dialects.openai.responses.request import ResponsesRequest
from specllama.server.dialects.openai.routes import ChatRequest
from specllama.server.dialects.shared.fields import checked
from specllama.server.service import DiskScopes
from specllama.server.settings import ServerSettings

SETTINGS = ServerSettings(load=LoadSettings(target=ModelSettings(path="m.gguf"), cache_disk=AUTO))
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def scopes(lines: list[str] | None = None, **changes: Any) -> DiskScopes:
    return DiskScopes(replace(SETTINGS, **changes), (lines if lines is not None else []).append)


def test_a_keys_scope_does_not_depend_on_its_position() -> None:
    one = scopes(keys=("first", "second"))
    other = scopes(keys=("new", "second", "first"))
    assert one.of("key 1") == other.of("key 3") != ""
    assert one.of("key 2") == other.of("key 2") != one.of("key 1")
    assert one.of("key 3") == one.of("") == "", "nobody"
    assert one.folder("key 1") == one.of("key 1")
    assert one.folder("key 9") is None


def test_a_server_without_keys_does_not_share_with_the_commands_of_its_user(cache: Path) -> None:
    assert scopes().of("") == OPEN != LOCAL
    shared = scopes(keys=("first", "second"), share_cache=True)
    assert shared.of("key 1") == shared.of("key 2") == SHARED
    assert shared.folder("key 1") == scopes().folder("") == ""
    assert not cache.exists()


def test_no_directory_is_created_if_nothing_is_kept(cache: Path) -> None:
    load = replace(SETTINGS.load, cache_disk=0)
    assert scopes(keys=("first",), load=load).of("key 1") == ""
    assert not cache.exists()
    disk_scopes = scopes(keys=("first",), load=load, slot_save_path=str(cache.parent))
    assert disk_scopes.folder("key 1")


def test_without_a_secret_a_key_has_no_scope(cache: Path) -> None:
    cache.write_text("not a directory")
    lines: list[str] = []
    disk_scopes = scopes(lines, keys=("first",))
    assert (disk_scopes.of("key 1"), disk_scopes.folder("key 1")) == ("", None)
    assert len(lines) == 1
    assert "prompts are not kept on disk" in lines[0]


def test_a_slot_save_path_must_be_a_directory(tmp_path: Path) -> None:
    assert replace(SETTINGS, slot_save_path=str(tmp_path)).slot_save_path == str(tmp_path)
    for wrong in (tmp_path / "nothing", Path(__file__)):
        with pytest.raises(UsageError, match="there is no folder") as raised:
            replace(SETTINGS, slot_save_path=str(wrong))
        assert raised.value.option == "slot_save_path"


BODIES = {
    "chat": (ChatRequest, {"messages": MESSAGES}),
    "completion": (NativeRequest, {"prompt": "Hello"}),
    "responses": (ResponsesRequest, {"input": "Hello"}),
    "messages": (MessagesRequest, {"messages": MESSAGES, "max_tokens": 5}),
    "ollama": (OllamaChatRequest, {"model": "m", "messages": MESSAGES}),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_request_may_ask_that_nothing_of_it_is_written(name: str) -> None:
    model, body = BODIES[name]
    assert checked(model, body).kept
    for choice in ({"store": True}, {}, True, None):
        assert checked(model, {**body, "cache": choice}).kept
    for choice in ({"store": False}, False):
        read_body = checked(model, {**body, "cache": choice})
        assert not read_body.kept
        assert read_body.ignored_fields == ()
    for wrong in ({"store": "no"}, {"stoer": False}, {"store": True, "ttl": 5}):
        with pytest.raises(UsageError, match="cache"):
            checked(model, {**body, "cache": wrong})
    with pytest.raises(UsageError, match="cache: must be true, false or an object"):
        checked(model, {**body, "cache": 5})


def test_store_of_responses_is_meant_for_the_disk_too() -> None:
    for body in ({"store": False}, {"store": False, "cache": {"store": True}}, {"cache": {"store": False}}):
        assert not checked(ResponsesRequest, {"input": "Hello", **body}).kept
    assert checked(ChatRequest, {"messages": MESSAGES, "store": False}).kept, "OpenAI's own store: no effect"


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("slot.bin", True),
        ("a b", True),
        (".hidden", True),
        ("ä€😀", True),
        ("x" * 255, True),
        ("", False),
        ("x" * 256, False),
        ("é" * 128, False),  # 256 bytes
        ("a/b", False),
        ("a\\b", False),
        ("..", False),
        ("a..b", False),
        (".", False),
        ("a.", False),
        (" a", False),
        ("a ", False),
        ("\u00a0a\u00a0", True),
        *[(f"a{c}b", False) for c in '\0\n\x1f\x7f\x80\x9f:*?"<>|\uff0e\u2215\u2216\ud800\udfff\ufffd\ufeff'],
        ("a\u2044b", True),
    ],
)
def test_llama_servers_rules_for_file_names(name: str, accepted: bool) -> None:
    assert is_file_name(name) == accepted
