"""Which models a server offers, and under which names."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from specllama.data import EMBEDDED_TARGET
from specllama.errors import GGUFError, NotFoundError, UsageError
from specllama.models.catalogue import Catalogue, CatalogueModel, DetailsReader, of_file, scan
from specllama.models.demo import DemoStore
from specllama.models.quants import guessed_bytes
from specllama.models.resolve import Library
from tests.support import tinyembedders, tinyheads
from tests.support.hub_cache import put

MANIFEST = """
[models."big-8b"]
aliases = ["8B"]
repo = "me/Big-GGUF"
quant = "Q4_K_M"

[models."away-1b"]
aliases = ["away"]
repo = "me/Away-GGUF"
quant = "Q8_0"
"""


@pytest.fixture
def library(tmp_path: Path) -> Library:
    cache = tmp_path / "hub"
    put(cache, "me/Big-GGUF", "Big-Q8_0.gguf", b"12345")
    put(cache, "me/Big-GGUF", "Big-Q4_K_M.gguf", b"123")
    put(cache, "me/Big-GGUF", "mmproj-F16.gguf", b"a projector")
    put(cache, "you/other", "other.gguf", b"1234")
    put(cache, "you/half", "half-Q4_0-00001-of-00002.gguf", b"a part")
    (tmp_path / "models.toml").write_text(MANIFEST)
    environ = {
        "HF_HUB_CACHE": str(cache),
        "SPECLLAMA_MODELS": str(tmp_path / "models.toml"),
        "SPECLLAMA_DATA": str(tmp_path / "data"),
    }
    return Library(environ=environ)


def test_what_is_on_disk_and_what_is_known(library: Library) -> None:
    catalogue = scan(library)
    on_disk = {model.id: model for model in catalogue.models if model.on_disk}
    assert set(on_disk) == {
        "pydoc-target", "me/Big-GGUF:Q4_K_M", "me/Big-GGUF:Q8_0", "you/other:other.gguf",
    }  # fmt: skip
    assert on_disk["me/Big-GGUF:Q8_0"].n_bytes == 5
    assert {id_ for id_, model in on_disk.items() if model.has_projector} == {
        "me/Big-GGUF:Q4_K_M", "me/Big-GGUF:Q8_0",
    }  # fmt: skip
    assert abs(on_disk["me/Big-GGUF:Q8_0"].modified - time.time()) < 3600
    known = {model.id: model.pull for model in catalogue.models if not model.on_disk}
    assert known["away-1b"] == "away"
    assert known["SmolLM2-135M-Instruct.Q4_1"] == "demo"
    assert "big-8b" not in known
    assert "llama-3.1-8b" in known, "the shipped models.toml"
    assert [m.on_disk for m in catalogue.models] == sorted(
        (m.on_disk for m in catalogue.models), reverse=True
    )
    assert len({m.id for m in catalogue.models}) == len(catalogue.models)


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("8B", "me/Big-GGUF:Q4_K_M"),
        ("8b", "me/Big-GGUF:Q4_K_M"),
        ("8B:latest", "me/Big-GGUF:Q4_K_M"),
        ("big-8b", "me/Big-GGUF:Q4_K_M"),
        ("8B:Q8_0", "me/Big-GGUF:Q8_0"),
        ("big-8b:q8_0", "me/Big-GGUF:Q8_0"),
        ("me/Big-GGUF", "me/Big-GGUF:Q4_K_M"),
        ("hf:me/Big-GGUF:Q8_0", "me/Big-GGUF:Q8_0"),
        ("Big-Q8_0", "me/Big-GGUF:Q8_0"),
        ("Big-Q8_0.gguf", "me/Big-GGUF:Q8_0"),
        ("big-q8_0.gguf:latest", "me/Big-GGUF:Q8_0"),
        ("you/other", "you/other:other.gguf"),
        ("you/other:latest", "you/other:other.gguf"),
        ("pydoc", "pydoc-target"),
    ],
)
def test_names(library: Library, name: str, id_: str) -> None:
    model = scan(library).require(name)
    assert model.id == id_
    assert Path(model.path).is_file()


@pytest.mark.parametrize(
    ("name", "needle"),
    [
        ("away", "'away' is not on this disk: specllama pull away downloads it"),
        ("away:Q2_K", "specllama pull away:QUANT downloads it"),
        ("me/Away-GGUF", "specllama pull away downloads it"),
        ("demo", "specllama pull demo downloads it"),
        ("8B:Q2_K", "there is no model '8B:Q2_K' here, this server has pydoc-target, "),
        ("you/half", "there is no model 'you/half' here"),
        ("gpt-4o", "there is no model 'gpt-4o' here"),
        ("", "there is no model '' here"),
        ("x" * 5000, "there is no model 'xxx"),
        (str(EMBEDDED_TARGET), "there is no model"),
        ("/etc/passwd", "there is no model"),
        ("../hub", "there is no model"),
    ],
)
def test_other_names(library: Library, name: str, needle: str) -> None:
    """A path is no name, even of a model."""
    with pytest.raises(NotFoundError) as raised:
        scan(library).require(name)
    assert needle in raised.value.message
    assert len(raised.value.message) < 400


def test_an_id_goes_before_other_names() -> None:
    own, other = CatalogueModel("a", "/a"), CatalogueModel("b", "/b", names=("A",))
    assert Catalogue((other, own)).find("A") is own


def test_many_models_are_not_all_named() -> None:
    catalogue = Catalogue(tuple(CatalogueModel(f"m{i}", "/m") for i in range(40)))
    with pytest.raises(NotFoundError, match="m11 and 28 more"):
        catalogue.require("x")


def test_the_demo_model_on_disk(library: Library) -> None:
    demo = DemoStore(library.environ)
    demo.folder.mkdir(parents=True)
    with demo.path.open("wb") as file:
        file.truncate(demo.model.n_bytes)
    model = scan(library).require("demo")
    assert (model.id, model.path) == ("SmolLM2-135M-Instruct.Q4_1", str(demo.path))
    assert scan(library).require("smollm2-135m-instruct") == model
    assert of_file(model.path).id == model.id


def test_details_say_why_a_file_cannot_be_loaded(tmp_path: Path) -> None:
    read = DetailsReader().of
    page, cut, head = tmp_path / "page.gguf", tmp_path / "cut.gguf", tinyheads.eagle3(tmp_path / "head.gguf")
    page.write_bytes(b"<html>")
    cut.write_bytes(EMBEDDED_TARGET.read_bytes()[:1_000_000])
    assert read(str(EMBEDDED_TARGET)).problem is None
    assert read(str(tinyembedders.bert(tmp_path / "bert.gguf"))).problem is None
    assert isinstance(read(str(page)).problem, GGUFError)
    assert isinstance(read(str(cut)).problem, GGUFError)
    assert isinstance(read(str(tmp_path / "nowhere.gguf")).problem, NotFoundError)
    drafts = read(str(head))
    assert (type(drafts.problem), drafts.architecture) == (UsageError, "eagle3")


def test_a_new_download_is_found(library: Library, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        scan(library).require("away")
    put(tmp_path / "hub", "me/Away-GGUF", "away-Q8_0.gguf", b"here")
    assert scan(library).require("away").n_bytes == 4
    assert not [m for m in scan(library).models if m.id == "away-1b"]


@pytest.mark.parametrize(
    ("name", "quant", "least", "most"),
    [
        ("llama-3.1-8b", "Q4_K_M", 4.6e9, 5.0e9),  # 4.92e9 on the hub
        ("qwen2.5-coder-0.5b", "Q8_0", 5.0e8, 5.6e8),
        ("gemma-3-270m", "Q8_0", 2.7e8, 3.1e8),
        ("qwen3.6-35b-a3b", "UD-Q4_K_M", 1.9e10, 2.3e10),  # all its experts
    ],
)
def test_a_size_is_guessed_by_names(name: str, quant: str, least: float, most: float) -> None:
    assert least < (guessed_bytes(name, quant) or 0) < most
    assert guessed_bytes("glm-4.7-flash", quant) is None
    assert guessed_bytes(name, "mtp.gguf") is None
