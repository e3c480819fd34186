"""The file of a repository that a tag selects."""

from __future__ import annotations

import time

import pytest

from specllama.errors import IntegrityError, NotFoundError, UsageError
from specllama.models.quants import choose, find_models, is_sidecar

FILES = [
    "README.md", "mmproj-model-F16.gguf", "model.imatrix.gguf", "mtp-model-Q8_0.gguf", "eagle3-x.gguf",
    "dflash-x.gguf", "dspark-x.gguf", "model-IQ4_XS.gguf", "model-Q2_K.gguf",
    "model-Q4_K_M-00001-of-00002.gguf", "model-Q4_K_M-00002-of-00002.gguf", "model-Q4_K_M.gguf",
    "model-Q8_0.gguf",
    "BF16/model-BF16-00001-of-00003.gguf", "BF16/model-BF16-00003-of-00003.gguf",
]  # fmt: skip


def test_sidecars_are_not_models() -> None:
    models = find_models(FILES)
    assert not any(is_sidecar(m.parts[0]) for m in models)
    assert [m.quant for m in models] == ["IQ4_XS", "Q2_K", "Q4_K_M", "Q8_0", "BF16", "Q4_K_M"]
    assert sum(is_sidecar(f) for f in FILES) == 6


@pytest.mark.parametrize(
    ("tag", "file"),
    [
        ("", "model-Q4_K_M.gguf"),
        ("q8_0", "model-Q8_0.gguf"),
        ("Q2_K", "model-Q2_K.gguf"),
        ("IQ4_XS", "model-IQ4_XS.gguf"),
        ("model-Q4_K_M-00001-of-00002.gguf", "model-Q4_K_M-00001-of-00002.gguf"),
        ("model-Q4_K_M-00002-of-00002.gguf", "model-Q4_K_M-00001-of-00002.gguf"),
    ],
)
def test_a_tag_selects_a_file(tag: str, file: str) -> None:
    assert choose(find_models(FILES), tag, "user/repo").parts[0] == file


def test_the_order_of_preference_without_a_tag() -> None:
    def chosen(*files: str, preferred: str = "") -> str:
        return choose(find_models(files), "", "user/repo", preferred).parts[0]

    assert chosen("m-Q2_K.gguf", "m-Q8_0.gguf", "m-Q4_K_M.gguf") == "m-Q4_K_M.gguf"
    assert chosen("m-Q2_K.gguf", "m-Q8_0.gguf") == "m-Q8_0.gguf"
    assert chosen("m-Q2_K.gguf", "m-Q3_K.gguf") == "m-Q3_K.gguf"
    unsloth = [f"m-UD-{quant}.gguf" for quant in ("IQ1_M", "Q2_K_XL", "Q4_K_XL", "Q5_K_XL", "Q8_K_XL")]
    assert chosen(*unsloth) == "m-UD-Q4_K_XL.gguf"
    assert chosen("m-UD-Q3_K_XL.gguf", "m-UD-Q5_K_XL.gguf", "m-BF16.gguf", "m.gguf") == "m-UD-Q5_K_XL.gguf"
    assert chosen("m-UD-Q5_K_M.gguf", "m-Q5_K_M.gguf") == "m-Q5_K_M.gguf"
    assert chosen("m-Q8_0.gguf", "m-Q4_K_M.gguf", preferred="Q8_0") == "m-Q8_0.gguf"
    assert chosen("m-Q4_K_M.gguf", preferred="Q8_0") == "m-Q4_K_M.gguf"
    assert chosen("m-IQ4_K_M.gguf", "m.gguf") == "m-IQ4_K_M.gguf"  # no Q4_K_M


@pytest.mark.parametrize(
    ("tag", "file"),
    [
        ("Q4_K_M", "m-Q4_K_M.gguf"),
        ("UD-Q4_K_M", "m-UD-Q4_K_M.gguf"),
        ("ud-q4_k_m", "m-UD-Q4_K_M.gguf"),
        ("Q6_K", ""),
        ("Q8_0", "CLOUD-Q8_0.gguf"),
        ("Q5_K_M", "UsageError: user/repo may mean 3 files"),
        ("m-Q5_K_M.gguf", "UsageError: user/repo may mean 2 files"),
        ("m-i1-Q5_K_M.gguf", "m-i1-Q5_K_M.gguf"),
        ("b/m-Q5_K_M.gguf", "b/m-Q5_K_M.gguf"),
    ],
)
def test_a_tag_selects_one_file_or_none(tag: str, file: str) -> None:
    there = [
        "m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf", "m-UD-Q6_K.gguf", "CLOUD-Q8_0.gguf", "b/m-Q5_K_M.gguf",
        "a/m-Q5_K_M.gguf", "m-i1-Q5_K_M.gguf",
    ]  # fmt: skip
    there_is = ""
    try:
        got = choose(find_models(there), tag, "user/repo").first
    except NotFoundError:
        got = ""
    except UsageError as error:
        got = f"UsageError: {error.message}"
        there_is = error.hint
    assert got == file
    assert not got.startswith("UsageError") or "a/m-Q5_K_M.gguf, b/m-Q5_K_M.gguf" in there_is


def test_rejects_a_tag_without_a_complete_model() -> None:
    with pytest.raises(NotFoundError, match="no quantisation 'Q4'") as caught:
        choose(find_models(FILES), "Q4", "user/repo")
    assert caught.value.hint == "there are: IQ4_XS, Q2_K, Q4_K_M, Q8_0, BF16"
    with pytest.raises(NotFoundError, match="no file"):
        choose(find_models(FILES), "mmproj-model-F16.gguf", "user/repo")
    with pytest.raises(NotFoundError, match="no GGUF model"):
        choose(find_models(["README.md", "mmproj.gguf"]), "", "user/repo")
    with pytest.raises(IntegrityError, match=r"part BF16/model-BF16-00002-of-00003\.gguf is missing"):
        choose(find_models(FILES), "BF16", "user/repo")


def test_names_of_parts_are_made_when_they_are_asked_for() -> None:
    claims = [f"m{i}-Q8_0-00002-of-01000.gguf" for i in range(2000)]
    began, models = time.process_time(), find_models(claims)
    assert len(models) == 2000
    assert (models[0].first, len(models[0].parts), len(models[0].missing)) == (
        "m0-Q8_0-00001-of-01000.gguf",
        1000,
        999,
    )
    with pytest.raises(IntegrityError, match=r"part m0-Q8_0-00001-of-01000\.gguf is missing"):
        choose(models, "m0-Q8_0-00002-of-01000.gguf", "user/repo")
    with pytest.raises(UsageError, match="may mean 2000 files"):
        choose(models, "Q8_0", "user/repo")
    assert time.process_time() - began < 1


def test_a_name_with_too_many_parts_is_that_of_one_file() -> None:
    name = "m-Q8_0-00001-of-99999.gguf"
    (only,) = find_models([name])
    assert (only.parts, only.missing) == ((name,), ())
