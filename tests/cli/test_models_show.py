"""`specllama models show`: what a model is, whether it fits here, and what can draft for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.cli import models_show
from specllama.cli.models_show import Machine, fit
from specllama.data import DEMO_HEAD, EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.gguf.header import read_model
from specllama.models.memory.plan import DeviceMemory
from tests.cli.test_pull import FILES, REPOS, Named
from tests.support import tinyembedders
from tests.support.command import Command
from tests.support.hub import LocalHub

GB = 10**9


@pytest.fixture
def named(command: Command, hub: LocalHub) -> Named:
    return Named(command, hub)


def test_a_known_name_is_shown_from_the_hub_without_a_download(named: Named) -> None:
    shown = named("models", "show", "8B", "--json").json
    assert (shown["on_disk"], shown["repo"], shown["path"]) == (False, REPOS[0], None)
    assert shown["licence"] == "Llama 3.1 Community License"
    assert [draft["where"] for draft in shown["drafts"]] == ["specllama pull 1B"]
    assert named.hub.sent < EMBEDDED_TARGET.stat().st_size // 4
    assert named("pull", "8B", "1B").code == 0
    there = named("models", "show", "8B")
    assert str(named.link(0)) in there.out
    assert f"used by itself: {named.link(1)}" in there.out
    listed = named("models", env={"COLUMNS": "80"}).out.splitlines()
    assert any("Instruct-GGUF:Q4_K_M (8B)" in line and line.endswith("yes") for line in listed)
    (entry, _) = named("models", "--json").json["on_disk"]
    assert (entry["fits"], entry["n_ctx_here"]) == (True, 2048)
    assert FILES[0] in there.out


def test_what_fits_depends_on_the_machine() -> None:
    header = read_model(str(EMBEDDED_TARGET))
    whole = fit(header, Machine(GB))
    assert whole.word == "yes"
    assert whole.sentence(Machine(GB)).endswith("1.0 GB are free: it fits")
    assert fit(header, Machine(66 * 10**6)).word == "512 tokens"
    small = fit(header, Machine(10**7))
    assert (small.word, small.plan) == ("no", None)
    assert "not enough memory" in small.sentence(Machine(10**7))
    on_gpu = fit(header, Machine(GB, (DeviceMemory("CUDA0", GB),)))
    assert on_gpu.plan is not None
    assert on_gpu.plan.device > 0
    assert "of the GPU for" in on_gpu.sentence(Machine(GB))


def test_a_model_that_is_not_there(command: Command) -> None:
    shown = command("models", "show", "nothing-of-that-name")
    assert shown.code == 3
    assert "NAME|FILE: there is no file nothing-of-that-name, and no model of that name" in shown.err


def test_a_head_that_drafts_by_itself_is_shown() -> None:
    header = read_model(str(EMBEDDED_TARGET))
    assert models_show._head(header, "") == models_show._head(header, str(EMBEDDED_DRAFT)) == "none"
    shown = models_show._head(header, str(DEMO_HEAD))
    assert shown.endswith(f" in {DEMO_HEAD}, drafts without another model")


def test_an_embedding_model_is_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_show, "_MUCH_SMALLER", 0)  # of any size
    target = read_model(EMBEDDED_TARGET)
    embedder = read_model(tinyembedders.decoder(tmp_path / "embedder.gguf"))
    assert models_show._fits(target, target) == "vocabulary identical"
    assert models_show._fits(embedder, embedder) is None
