"""`specllama pull` and `models` for a repository that holds a model and its projectors."""

from __future__ import annotations

from pathlib import Path

from tests.support import tiny_mmproj, tinygguf
from tests.support.command import Command, Result
from tests.support.hub import LocalHub, Repo

REPO, MODEL, PROJECTOR = "me/Eyes-GGUF", "Eyes-Q4_0.gguf", "mmproj-F16.gguf"


def test_a_projector_is_pulled_listed_verified_and_removed_with_its_model(
    command: Command, hub: LocalHub, tmp_path: Path
) -> None:
    model, projector = tinygguf.gemma3(tmp_path / MODEL), tiny_mmproj.gemma3(tmp_path / PROJECTOR)
    files = {MODEL: model, PROJECTOR: projector, "mmproj-F32.gguf": projector}
    hub.repos[REPO] = Repo({name: path.read_bytes() for name, path in files.items()})

    def run(*args: str) -> Result:
        return command(*args, env=hub.environ())

    plan = run("pull", REPO, "--dry-run", "--json").json
    assert [file["path"] for one in plan["models"] for file in one["files"]] == [MODEL, PROJECTOR]
    assert plan["missing"] == model.stat().st_size + projector.stat().st_size
    shown = run("models", "show", REPO)
    assert f"images    read with {PROJECTOR}, which specllama pull fetches too" in shown.out
    pulled = run("pull", REPO, "--no-mmproj")
    folder = Path(pulled.out.strip()).parent
    assert not (folder / PROJECTOR).exists()
    again = run("pull", REPO)
    assert again.out.splitlines() == [str(folder / MODEL)]
    assert f"{REPO}: its projector for images, {PROJECTOR}, " in again.err
    assert (folder / PROJECTOR).read_bytes() == projector.read_bytes()
    listed = run("models", "--json").json["on_disk"]
    assert [(one["name"], one["mmproj"]) for one in listed] == [(f"{REPO}:Q4_0", str(folder / PROJECTOR))]
    verified = run("models", "verify", "--json").json["files"]
    assert [Path(file["path"]).name for file in verified] == [MODEL, PROJECTOR]
    assert run("models", "rm", REPO).code == 0
    assert not folder.parent.parent.exists()


def test_one_of_another_model_is_left_out(command: Command, hub: LocalHub, tmp_path: Path) -> None:
    model = tinygguf.llama(tmp_path / MODEL)
    projector = tiny_mmproj.gemma3(tmp_path / PROJECTOR, n_embd=64)
    hub.repos[REPO] = Repo({MODEL: model.read_bytes(), PROJECTOR: projector.read_bytes()})
    pulled = command("pull", REPO, env=hub.environ())
    assert pulled.code == 0, pulled.err
    assert f"{PROJECTOR} is left out: " in pulled.err
    assert "is the projector of another model: it makes rows of 64 numbers" in " ".join(pulled.err.split())
    refused = command("run", "-m", str(tmp_path / MODEL), "-mm", str(projector), "-p", "x")
    assert refused.code == 2
    assert "-mm: " in refused.err
    assert "is the projector of another model" in " ".join(refused.err.split())
