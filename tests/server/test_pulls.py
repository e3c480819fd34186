"""Known models are downloaded when a client asks for them by name; nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specllama.data import EMBEDDED_DRAFT
from tests.support.hub import LocalHub, Repo, local_hub
from tests.support.serving import Server

MANIFEST = """
[models.far-away]
repo = "me/far-away"

[models.further]
repo = "me/further"
"""
CONTENT = EMBEDDED_DRAFT.read_bytes()


@pytest.fixture(scope="module")
def hub() -> Iterator[LocalHub]:
    with local_hub() as local:
        for name in ("far-away", "further"):
            local.repos[f"me/{name}"] = Repo({f"{name}-Q4_0.gguf": CONTENT})
        yield local


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, hub: LocalHub) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("pulls")
    (home / "models.toml").write_text(MANIFEST)
    environ = hub.environ(SPECLLAMA_MODELS=str(home / "models.toml"), HF_HUB_CACHE=str(home / "hub"))
    with Server(home, "-np", "1", "-c", "512", env={**environ, "SPECLLAMA_MODEL": None}) as one:
        yield one
        assert not any("unexpected" in line or "Traceback" in line for line in one.lines)


def status(server: Server, name: str) -> dict[str, Any]:
    """Of a model in the list, whatever its name there is when it is on disk."""
    listed = server.get("/v1/models?known=true").json["data"]
    state: dict[str, Any] = next(m["status"] for m in listed if name in m["id"])
    return state


def test_a_known_model_is_downloaded(server: Server, hub: LocalHub) -> None:
    hub.faults.rate, hub.faults.small_buffers = len(CONTENT) / 2, True
    assert status(server, "far-away") == {"value": "not downloaded", "pull": "specllama pull far-away"}
    assert server.post("/models/pull", {"model": "far-away"}).status == 200
    server.until(lambda: 0 < status(server, "far-away")["download"]["done"] < len(CONTENT))
    busy = server.post("/models/pull", {"model": "further"})
    assert (busy.status, "one model at a time" in busy.error["message"]) == (400, True)
    assert server.post("/models/pull/stop", {"model": "far-away"}).status == 200
    server.until(lambda: not status(server, "far-away")["download"]["running"])
    assert "stopped" in status(server, "far-away")["download"]["error"]
    hub.faults.rate = 0.0
    n = len(hub.content_requests())
    assert server.post("/models/pull", {"model": "far-away"}).status == 200
    server.until(lambda: status(server, "far-away")["value"] == "unloaded")
    sent = [{k.lower(): v for k, v in one.headers.items()} for one in hub.content_requests()[n:]]
    ranges = [headers.get("range", "") for headers in sent]
    assert any(not one.startswith("bytes=0-") and one.endswith("-") for one in ranges), (
        ranges
    )  # it was resumed
    assert server.chat(model="far-away", max_tokens=4).status == 200
    assert server.post("/models/pull", {"model": "far-away"}).status == 200  # it is there


def test_unknown_models_are_not_downloaded(server: Server, hub: LocalHub) -> None:
    hub.repos["me/secret"] = Repo({"secret-Q4_0.gguf": CONTENT})
    n = len(hub.requests)
    for name in (
        "me/secret",
        "hf:me/secret",
        "me/further:../../x",
        f"{hub.endpoint}/me/secret",
        "/etc/passwd",
        "x" * 500,
    ):
        assert server.post("/models/pull", {"model": name}).status == 404
    for body in ({}, {"model": 3}, {"model": "x" * 600}):
        assert server.post("/models/pull", body).status == 400
    assert (
        server.post("/models/pull", {"model": "further"}, headers={"origin": "http://evil.example"}).status
        == 403
    )
    assert len(hub.requests) == n


def test_a_download_that_fails_says_why(server: Server, hub: LocalHub) -> None:
    repo = hub.repos.pop("me/further")
    assert server.post("/models/pull", {"model": "further"}).status == 200
    server.until(lambda: status(server, "further").get("download", {}).get("error"))
    hub.repos["me/further"] = repo
    assert server.post("/models/pull", {"model": "further"}).status == 200
    server.until(lambda: status(server, "further")["value"] == "unloaded")


def test_a_server_of_one_model_downloads_no_others(tmp_path: Path) -> None:
    with Server(tmp_path, "-m", "pydoc", "-np", "1", env={"SPECLLAMA_API_KEY": "a,b"}) as one:
        one.key = "a"
        assert one.post("/models/pull", {"model": "demo"}).status in (400, 403)
