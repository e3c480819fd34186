"""Which projector belongs to a model on disk; what is said where that is not clear, or it does not fit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from specllama.config.load import LoadSettings, ModelSettings
from specllama.errors import GGUFError, UsageError
from specllama.models.prepare import prepare_if_on_disk
from specllama.models.projectors import find_projector, no_projector
from specllama.models.quants import name_words, projectors_for
from specllama.models.resolve import Library
from tests.support import tiny_mmproj, tinygguf
from tests.support.demo import Notes
from tests.support.hub_cache import put


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub"


@pytest.fixture
def library(cache: Path) -> Library:
    return Library(Notes(), {"HF_HUB_CACHE": str(cache)})


def notes(library: Library) -> list[str]:
    listener = library.listener
    assert isinstance(listener, Notes)
    return listener.notes


def beside(library: Library, folder: Path, model: str, others: Sequence[str]) -> str | list[str]:
    """The name of the file that is the projector of a model in this folder; else those in question."""
    folder.mkdir()
    for name in (model, *others):
        (folder / name).touch()
    found = find_projector(library, str(folder / model))
    return Path(found.path).name if found.path else sorted(Path(one).name for one in found.others)


GEMMA, QWEN = "google_gemma-3-4b-it-Q4_K_M.gguf", "Qwen2.5-7B-Instruct-Q4_K_M.gguf"


@pytest.mark.parametrize(
    ("model", "others", "projector"),
    [
        (GEMMA, ["mmproj-model-f16.gguf"], "mmproj-model-f16.gguf"),
        (GEMMA, ["google_gemma-3-4b-it-MMPROJ-bf16.gguf"], "google_gemma-3-4b-it-MMPROJ-bf16.gguf"),
        (GEMMA, ["mmproj-Q8_0.gguf", "mmproj-BF16.gguf", "mmproj-F32.gguf"], "mmproj-BF16.gguf"),
        (GEMMA, ["mmproj-F16.gguf", "mmproj-google_gemma-3-4b-it-f32.gguf"],
         "mmproj-google_gemma-3-4b-it-f32.gguf"),
        (GEMMA, ["mmproj-gemma-3-12b-it-f16.gguf"], []),
        (GEMMA, ["mmproj-F16.gguf", QWEN], ["mmproj-F16.gguf"]),
        (GEMMA, ["mmproj-F16.gguf", "google_gemma-3-4b-it-Q8_0.gguf"], "mmproj-F16.gguf"),
        (QWEN, ["mmproj-Qwen2.5-VL-7B-Instruct-f16.gguf"], []),  # of a model with another name
        (QWEN, ["mmproj-gemma-3-4b-it-f16.gguf", GEMMA], []),
        (QWEN, [], []),
        ("mmproj-F16.gguf", [], []),
    ],
)  # fmt: skip
def test_in_a_folder_the_name_decides(
    tmp_path: Path, library: Library, model: str, others: list[str], projector: str | list[str]
) -> None:
    assert beside(library, tmp_path / "models", model, others) == projector


def test_words_of_names() -> None:
    assert name_words("BF16/Llama-4-Scout-UD-Q4_K_XL-00001-of-00002.gguf") == {"llama", "4", "scout"}
    assert name_words("mmproj-model-f16.gguf") == name_words("mmproj-BF16.gguf") == set()


def test_in_a_repository_the_nearest_folder_then_the_name_then_the_precision() -> None:
    files = ["mmproj-F32.gguf", "a/mmproj-F16.gguf", "b/mmproj-F16.gguf", "mmproj-Q8_0.gguf", "a/m-Q4_0.gguf"]
    assert projectors_for(files, "a/m-Q4_0.gguf") == [files[1], files[3], files[0]]
    assert projectors_for(files, "m-Q4_0.gguf") == [files[3], files[0]]
    two = ["mmproj-x-4b-f16.gguf", "mmproj-x-12b-f16.gguf"]
    assert projectors_for(two, "x-12b-Q4_K_M.gguf")[0] == two[1]


def test_in_the_cache_it_is_that_of_the_repository(library: Library, cache: Path) -> None:
    model = put(cache, "me/Big-GGUF", "UD-Q4/Big-UD-Q4_K_XL-00001-of-00002.gguf", b"a model")
    assert find_projector(library, str(model)).path == ""
    other = put(cache, "me/Big-GGUF", "mmproj-F16.gguf", b"a projector")
    assert find_projector(library, str(model)).path == str(other)


def test_models_toml_names_another_repository(library: Library, cache: Path) -> None:
    model = put(cache, "unsloth/gemma-4-31B-it-GGUF", "gemma-4-31B-it-UD-Q4_K_XL.gguf", b"a model")
    hint = no_projector(library, str(model)).hint
    assert hint == "specllama pull gemma-4-31b fetches its projector, then load it again"
    there = put(cache, "ggml-org/gemma-4-31B-it-GGUF", "mmproj-gemma-4-31B-it-f16.gguf", b"a projector")
    assert find_projector(library, str(model)).path == str(there)
    assert no_projector(library, str(model)).hint.startswith(f"load it with mmproj={there}, ")


def test_a_manifest_of_ollama_names_it(tmp_path: Path, library: Library) -> None:
    blobs, manifests = tmp_path / "models/blobs", tmp_path / "models/manifests/registry.ollama.ai/library/x"
    blobs.mkdir(parents=True)
    manifests.mkdir(parents=True)
    kinds = {
        "a" * 64: "application/vnd.ollama.image.model",
        "b" * 64: "application/vnd.ollama.image.projector",
    }
    for digest in kinds:
        (blobs / f"sha256-{digest}").touch()
    (manifests / "broken").write_text('{"layers": 1}')
    layers = [{"digest": f"sha256:{digest}", "mediaType": kind} for digest, kind in kinds.items()]
    (manifests / "latest").write_text(json.dumps({"layers": layers}))
    assert find_projector(library, str(blobs / f"sha256-{'a' * 64}")).path == str(
        blobs / f"sha256-{'b' * 64}"
    )
    (manifests / "latest").unlink()
    assert find_projector(library, str(blobs / f"sha256-{'a' * 64}")).path == ""


def settings(model: Path, **more: str) -> LoadSettings:
    return LoadSettings(target=ModelSettings(path=str(model)), **more)  # type: ignore[arg-type]


def test_the_projector_next_to_a_model_is_used(tmp_path: Path, library: Library) -> None:
    model = tinygguf.gemma3(tmp_path / "x-Q4_0.gguf")
    projector = tiny_mmproj.gemma3(tmp_path / "mmproj-x-F16.gguf")
    made = prepare_if_on_disk(library, settings(model))
    assert made is not None
    assert (made.projector, made.mmproj_found) == (str(projector), True)
    without = prepare_if_on_disk(library, settings(model, mmproj="none"))
    assert without is not None
    assert without.projector == ""
    named = prepare_if_on_disk(library, settings(model, mmproj=str(projector)))
    assert named is not None
    assert (named.projector, named.mmproj_found) == (str(projector), False)
    assert notes(library) == []


def test_one_that_does_not_fit_is_an_error_where_it_is_named_else_a_note(
    tmp_path: Path, library: Library
) -> None:
    model = tinygguf.llama(tmp_path / "x-Q4_0.gguf")
    projector = tiny_mmproj.gemma3(tmp_path / "mmproj-x-F16.gguf", n_embd=64)
    assert prepare_if_on_disk(library, settings(model)) == settings(model)
    assert len(notes(library)) == 1
    assert "the projector of the model is not used: " in notes(library)[0]
    with pytest.raises(UsageError, match=r"^mmproj: .*is the projector of another model"):
        prepare_if_on_disk(library, settings(model, mmproj=str(projector)))
    with pytest.raises(UsageError, match=r"^mmproj: .*x-Q4_0.gguf is not a projector"):
        prepare_if_on_disk(library, settings(model, mmproj=str(model)))
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF")
    with pytest.raises(GGUFError, match=r"^mmproj: "):
        prepare_if_on_disk(library, settings(model, mmproj=str(tmp_path / "damaged.gguf")))


def test_several_that_may_be_meant_are_listed(tmp_path: Path, library: Library) -> None:
    model = tinygguf.llama(tmp_path / "x-Q4_0.gguf")
    for name in ("mmproj-F16.gguf", "other-Q4_0.gguf"):
        (tmp_path / name).touch()
    assert prepare_if_on_disk(library, settings(model)) == settings(model)
    assert notes(library) == [
        "no projector is used: it is not clear which one is the model's: mmproj-F16.gguf; "
        "\ue000mmproj\ue001 names one"
    ]
    assert no_projector(library, str(model)).hint == f"name one: mmproj={tmp_path / 'mmproj-F16.gguf'}"


def test_where_none_is_known_the_error_says_how_they_are_called(tmp_path: Path, library: Library) -> None:
    model = tinygguf.llama(tmp_path / "x-Q4_0.gguf")
    error = no_projector(library, str(model))
    assert error.message == "x-Q4_0.gguf cannot read images: it was loaded without a projector"
    assert error.hint == "a model that reads images comes with a file mmproj-*.gguf, which mmproj names"
