"""Patterns of origins, and the paths of requests."""

from __future__ import annotations

import pytest

from specllama.config.load import LoadSettings, ModelSettings
from specllama.errors import UsageError
from specllama.server.http.origins import LOCAL, Origins, root_path, settle_path
from specllama.server.settings import ServerSettings

ALL = ["https://example.org", "http://a.b:1", "app://obsidian.md", "null", "chrome-extension://abc"]


@pytest.mark.parametrize(
    ("pattern", "allowed", "others"),
    [
        ("*", ALL, []),
        ("https://example.org", ["https://example.org", "HTTPS://EXAMPLE.org", "https://example.org:443"],
         ["http://example.org", "https://example.org:8443", "https://example.org.evil", "https://a.example.org"]),
        ("https://example.org/", ["https://example.org"], ["https://example.com"]),
        ("http://localhost:3000", ["http://localhost:3000"], ["http://localhost", "https://localhost:3000"]),
        ("localhost:3000", ["http://localhost:3000", "https://localhost:3000"], ["http://localhost:3001"]),
        ("example.org", ["http://example.org", "https://example.org"], ["https://example.org:8443"]),
        ("http://localhost:*", ["http://localhost", "http://localhost:5173"], ["https://localhost:1"]),
        ("https://*.example.org", ["https://a.example.org", "https://a.b.example.org"],
         ["https://example.org", "https://evilexample.org"]),
        ("chrome-extension://*", ["chrome-extension://abc"], ["moz-extension://abc", "https://abc"]),
        ("chrome-extension://abc", ["chrome-extension://abc"], ["chrome-extension://abcd"]),
        ("app://", ["app://obsidian.md", "app://.", "app://"], ["tauri://localhost"]),
        ("*://localhost:*", ["tauri://localhost", "http://localhost:1"], ["http://evil"]),
        ("http://[::1]:3000", ["http://[::1]:3000"], ["http://[::2]:3000"]),
        ("http://127.0.0.1:*", ["http://127.0.0.1:80", "http://127.0.0.1:1"], ["http://127.0.0.2"]),
        ("https://müller.example", ["https://xn--mller-kva.example"], ["https://muller.example"]),
        ("null", ["null"], ["https://null"]),
    ],
)  # fmt: skip
def test_patterns_match_origins(pattern: str, allowed: list[str], others: list[str]) -> None:
    origins = Origins([pattern])
    assert [origin for origin in allowed if origin not in origins] == []
    assert [origin for origin in [*others, ""] if origin in origins and pattern != "*"] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        " ",
        "https://",
        "http://a/b",
        "https://a?b",
        "a b",
        ":3000",
        "http://a:b",
        "http://u@a",
        "//a",
        "http://a:0",
        "a:65536",
    ],
)
def test_invalid_patterns(pattern: str) -> None:
    with pytest.raises(UsageError, match="origin") as error:
        Origins([pattern])
    assert error.value.option == "allowed_origin"
    assert "http://localhost:3000" in error.value.hint
    with pytest.raises(UsageError):
        ServerSettings(load=LoadSettings(target=ModelSettings(path="m.gguf")), origins=(pattern,))


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost.evil.example", "http://evil.example", "http://localhost@evil.example", "file://",
        "https://127.0.0.1.evil.example", "nonsense", "http://", "javascript://x",
    ],
)  # fmt: skip
def test_origins_that_are_not_local(origin: str) -> None:
    assert origin not in Origins(LOCAL)


@pytest.mark.parametrize(
    ("given", "path", "root", "host"),
    [
        ("/v1/models", "/v1/models", "", ""),
        ("/v1/models/", "/v1/models", "", ""),
        ("//v1///models//", "/v1/models", "", ""),
        ("/", "/", "", ""),
        ("//", "/", "", ""),
        ("http://localhost:8080/v1/models/", "/v1/models", "", "localhost:8080"),
        ("HTTP://evil.example", "/", "", "evil.example"),
        ("http://[bad/v1", "/", "", "?"),
        ("/llm/v1/models", "/v1/models", "/llm", ""),
        ("/llm", "/", "/llm", ""),
        ("/llm/", "/", "/llm", ""),
        ("//llm//v1/models", "/v1/models", "/llm", ""),
        ("/llmx/v1", "/llmx/v1", "/llm", ""),
        ("/v1/models", "/v1/models", "/llm", ""),
        ("*", "*", "", ""),
    ],
)
def test_paths(given: str, path: str, root: str, host: str) -> None:
    scope = {"path": given}
    assert (settle_path(scope, root), scope["path"]) == (host, path)


@pytest.mark.parametrize(("given", "root"), [("", ""), ("/", ""), ("llm", "/llm"), ("/a/b/", "/a/b")])
def test_root_paths(given: str, root: str) -> None:
    assert root_path(given) == root


@pytest.mark.parametrize("given", ["/a?b", "/a#b", "/a b", "http://a/b"])
def test_invalid_root_paths(given: str) -> None:
    with pytest.raises(UsageError):
        root_path(given)
