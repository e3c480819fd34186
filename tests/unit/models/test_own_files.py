"""Files of the user's own have names: in models.toml, and in folders of models."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specllama.cli.app import run_app
from specllama.data import EMBEDDED_TARGET
from specllama.errors import ConfigError, NotFoundError, UsageError
from specllama.models.catalogue import scan
from specllama.models.installed import select
from specllama.models.resolve import Library
from tests.support.demo import Notes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of models."""
    for name in (
        "a.gguf", "b-Q4_K_M-00001-of-00002.gguf", "b-Q4_K_M-00002-of-00002.gguf", "half-00001-of-00002.gguf",
        "c/c.gguf", "c/mmproj-c.gguf", "d/same.gguf", "e/same.gguf", "8B.gguf", "e/deeper/f.gguf", "note.txt",
    ):  # fmt: skip
        (tmp_path / "models" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "models" / name).write_bytes(b"x" * 7)
    return tmp_path / "models"


def test_a_folder_of_models(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    library = Library(environ=environ, models_dir=str(folder))
    by_name = {file.name: os.path.relpath(file.path, folder) for file in library.own_files}
    paths = ["8B.gguf", "d/same.gguf", "e/same.gguf"]  # names that are taken, or of two
    assert by_name == {
        "a": "a.gguf",
        "b-Q4_K_M": "b-Q4_K_M-00001-of-00002.gguf",
        "c": "c/c.gguf",
        **{str(folder / path): path for path in paths},
    }
    catalogue = scan(library)
    for name, path in by_name.items():
        assert library.find(name, "-m").path == catalogue.require(name).path == str(folder / path)
    assert catalogue.require("b-q4_k_m").n_bytes == 14
    other = Library(environ={**environ, "SPECLLAMA_MODELS_DIR": str(folder)})
    assert other.own_files == library.own_files
    toml = tmp_path / "absent.toml"  # a disk that is not attached
    toml.write_text(f"folders = ['{tmp_path / 'nothing'}', '{folder}']")
    absent = Library(environ={**environ, "SPECLLAMA_MODELS": str(toml)})
    assert {file.name for file in absent.own_files} >= {"b-Q4_K_M", "c"}
    toml.write_text(f"[models.own]\nfile = '{folder / 'a.gguf'}'\n[[pairs]]\ntarget = '8B'\ndrafts = ['own']")
    with pytest.raises(ConfigError, match=r"absent\.toml: the pair of '8B' names 'own', a file of your own"):
        _ = Library(environ={**environ, "SPECLLAMA_MODELS": str(toml)}).own_files
    (folder / "new.gguf").write_bytes(b"x")
    assert library.find("new", "-m").path == str(folder / "new.gguf")
    with pytest.raises(ConfigError, match="no folder of models"):
        Library(environ=environ, models_dir=str(tmp_path / "nothing")).find("a", "-m")
    for name in ("models/a.gguf", "pydoc"):  # what needs no folder
        listener = Notes()
        other = Library(listener, environ, models_dir=str(tmp_path / "nothing"))
        assert other.find(name, "-m").path == other.find(name, "-m").path
        assert listener.notes == [f"warning: {tmp_path / 'nothing'} is no folder of models that can be read"]


def test_a_server_without_its_folder_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPECLLAMA_MODEL", raising=False)
    assert run_app(["serve", "--models-dir", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.count("no folder of models") == 1


def test_a_file_gets_a_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toml = tmp_path / "models.toml"
    toml.write_text(f"folders = ['{folder}']")
    monkeypatch.setenv("SPECLLAMA_MODELS", str(toml))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    odd = tmp_path / 'an "odd" one.gguf'
    odd.symlink_to(EMBEDDED_TARGET)
    assert run_app(["models", "add", "mine", odd.name]) == 0
    assert Library().find("Mine", "-m").path == str(odd)
    assert scan(Library()).require("mine").path == str(odd)
    assert run_app(["models", "show", "mine"]) == run_app(["models", "list"]) == 0
    shown = capsys.readouterr().out
    assert str(odd) in shown
    assert "mine" in shown.split("files of your own")[1]
    for arguments, code in (
        (["add", "mine", odd.name], 2),
        (["add", "a", odd.name], 2),
        (["add", "8B", odd.name], 2),
        (["add", "demo", odd.name], 2),
        (["add", "no name", odd.name], 2),
        (["add", "other", "nothing.gguf"], 3),
        (["add", "other", str(folder / "a.gguf")], 6),
        (["rm", "a"], 3),
        (["verify", "mine"], 3),
    ):
        assert run_app(["models", *arguments]) == code, arguments
    assert "Traceback" not in capsys.readouterr().err
    assert toml.read_text().count("[models.") == 1
    gone = odd.rename(tmp_path / "moved")
    for command in ("verify", "show"):
        assert run_app(["models", command, "mine"]) == 3
        err = capsys.readouterr().err
        assert f"mine is {odd}, and that file is gone" in err
        assert "specllama models rm mine, then specllama models add mine FILE" in err
    with toml.open("a") as file:
        file.write("# kept\n[models.'8B']\nrepo = 'a/b'\n")
    gone.rename(odd)
    assert run_app(["models", "rm", "Mine"]) == 0
    assert capsys.readouterr().out == f"removed the name Mine; the file {odd} stays\n"
    assert odd.exists()
    assert toml.read_text() == f"folders = ['{folder}']\n\n# kept\n[models.'8B']\nrepo = 'a/b'\n"
    toml.write_text(f"models = {{ mine = {{ file = '{EMBEDDED_TARGET}' }}, other = {{ repo = 'a/b' }} }}")
    assert run_app(["models", "rm", "mine"]) == 2
    assert "line 1: mine has no table of its own" in capsys.readouterr().err


def test_a_name_of_two_files_lists_them(folder: Path, tmp_path: Path) -> None:
    library = Library(environ={"HF_HUB_CACHE": str(tmp_path / "hub")}, models_dir=str(folder))
    paths = [str(folder / "d/same.gguf"), str(folder / "e/same.gguf")]
    for name in ("same", "Same.gguf"):
        with pytest.raises(NotFoundError, match=f"-m: {name} is the name of 2 files") as failed:
            library.find(name, "-m")
        assert failed.value.hint == f"give the path: {paths[0]} or {paths[1]}"
    with pytest.raises(NotFoundError, match=r"same is no download, but of your own: .*/d/same\.gguf, "):
        select(library, "same")


def test_a_project_names_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("folders = ['/']\n[models.x]\nrepo='a/b'", "[models.x]\nfile = '/etc/passwd'"):
        (tmp_path / "models.toml").write_text(text)
        with pytest.raises(ConfigError, match="a project cannot name files and folders"):
            Library(environ={}).find("x", "-m")


def test_a_folder_is_no_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    for name in (".", "models", str(folder)):
        with pytest.raises(UsageError, match=f"-m: {name} is a folder") as failed:
            Library(environ={}).find(name, "-m")
        assert failed.value.hint.startswith("name a .gguf file in it; or have SPECLLAMA_MODELS_DIR")


@pytest.mark.parametrize("name", ["demo", "pydoc"])
def test_the_own_names_of_specllama_are_not_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whichever of them is asked for, by the file of a project and by that of the user."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "models.toml"
    file.write_text(f"[models.{name}]\nrepo = 'a/b'\n")
    for environ in ({}, {"SPECLLAMA_MODELS": str(file)}):
        with pytest.raises(ConfigError, match=f"line 1: {name}: this name belongs to a model of specllama"):
            Library(environ=environ).parse("pydoc", "-m")
    file.write_text("[models.x]\nrepo = 'a/b'\n")
    listener = Notes()
    assert Library(listener, {}).parse("pydoc", "-m").built_in == "pydoc"
    assert listener.notes == []


def test_words_and_flags_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, hint in (
        (["rm", "demo"], "it is: specllama models rm demo"),
        (["show", "8B"], "it is: specllama models show 8B"),
        (["version"], "it is: specllama --version"),
        (["-p", "hi"], "it is: specllama run -p hi"),
        (["serve", "-m", "a.gguf", "-m", "b.gguf"], "--models-dir FOLDER"),
        (["run", "-q", "--seed"], "see specllama run --help"),
        (["models", "--models-dir"], "see specllama models --help"),
        (["models", "list", "--models-dir"], "see specllama models list --help"),
        (["run", "--seed", "1" * 5000], f"from {-(2**63)} to {2**64 - 1}, not one of 5000 digits\n"),
        (["run", "--temp", "1" * 5000], "must be a number from 0 to 10000, not one of 5000 digits\n"),
        (["tune", "-ngl", "1" * 5000], "must be a number of layers from 0, auto or all, not '1111"),
    ):
        assert run_app(arguments) == 2
        err = capsys.readouterr().err
        assert hint in err
        assert len(err) < 400
