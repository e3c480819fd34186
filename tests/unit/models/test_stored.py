"""Each model in the cache has one name, which means its files alone to everything that takes a name."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.errors import NetworkError, NotFoundError, UsageError
from specllama.models.catalogue import scan
from specllama.models.installed import installed_models, remove, select, select_one
from specllama.models.progress import Listener
from specllama.models.quants import candidates, choose
from specllama.models.resolve import Library
from tests.support.hub_cache import put

REPO, OTHER = "me/x-GGUF", "you/x-GGUF"
COMMITS = "a" * 40, "b" * 40
MANIFEST = """
[models.x]
repo = "me/x-GGUF"
quant = "Q4_K_M"
[models."x-head"]
repo = "me/x-GGUF"
file = "mtp-m-Q4_K_M.gguf"
"""
_QUANTS = ("", "Q4_K_M", "q4_k_m", "Q8_0", "IQ1_M", "Q4_0")
_BEFORE = ("m", "M", "mtp-m", "m-it", "m-i1", "CLOUD", "mmproj-m", "m-eagle3")
_PARTS = ("", "-00001-of-00001", "-00001-of-00002", "-00002-of-00002", "-00001-of-00003", "-00000-of-00002")


@st.composite
def files(draw: st.DrawFn) -> tuple[str, str, str]:
    """(repository, commit, path) of a file, with names as repositories use them."""
    folder = draw(st.sampled_from(("", "", "", "Q4_K_M/", "UD/", "MTP/", "a b/", "c:d/")))
    quant = draw(st.sampled_from(("", "", "UD-"))) + draw(st.sampled_from(_QUANTS))
    between = draw(st.sampled_from("-."))
    name = draw(st.sampled_from(_BEFORE)) + (f"{between}{quant}" if quant else "")
    parts = draw(st.sampled_from(_PARTS))
    repo = draw(st.sampled_from((REPO, REPO, REPO, OTHER)))
    return repo, draw(st.sampled_from(COMMITS)), f"{folder}{name}{parts}.gguf"


def made(folder: Path, there: list[tuple[str, str, str]]) -> Library:
    """A library with these files. Each has content of its own, the same in both commits where its name
    ends with Q8_0.
    """
    folder.mkdir(exist_ok=True)
    (folder / "models.toml").write_text(MANIFEST)
    for repo, commit, path in there:
        content = f"{repo} {path} {'' if path.endswith('Q8_0.gguf') else commit}"
        put(folder / "hub", repo, path, content.encode(), commit)
    environ = {
        "HF_HUB_CACHE": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "SPECLLAMA_MODELS": str(folder / "models.toml"),
        "SPECLLAMA_DATA": str(folder / "data"),
    }
    return Library(environ=environ)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("caches")


FOLDERS = itertools.count()
SETTINGS = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@SETTINGS
@given(st.lists(files(), min_size=1, max_size=9, unique=True), st.data())
def test_a_listed_name_is_one_model_everywhere(
    folder: Path, there: list[tuple[str, str, str]], data: st.DataObject
) -> None:
    library = made(folder / str(next(FOLDERS)), there)
    listed = list(installed_models(library))
    assert len({model.name for model in listed}) == len(listed)
    catalogue = scan(library)
    for model in listed:
        for name in filter(None, (model.name, model.alias, model.repo if model.usual else "")):
            if name != model.repo:
                assert [m.content for m in select_one(library, name)] == [model.content]
            if not model.model.missing:
                assert library.find(name, "-m").path == str(model.files[0].link), name
                assert catalogue.require(name).path == str(model.files[0].link), name
    if listed:
        removed = data.draw(st.sampled_from(listed))
        remove(library, *select_one(library, removed.name))
        kept = [model for model in listed if model is not removed]
        assert {m.content for m in installed_models(library)} == {m.content for m in kept}
        assert all(file.link.exists() for model in kept for file in model.files)


@given(
    st.lists(files(), min_size=1, max_size=9), st.sampled_from(("", "Q4_K_M", "UD-Q4_K_M", "it", "i1-Q4_0"))
)
def test_a_tag_means_one_model_or_is_refused(there: list[tuple[str, str, str]], tag: str) -> None:
    paths = {path for _, _, path in there}
    models = candidates(paths, tag)
    try:
        model = choose(models, tag, REPO, complete=False)
    except (UsageError, NotFoundError):
        assert not models or tag or len(models) > 1
        return
    path = model.first.upper()
    if tag in ("Q4_K_M", "UD-Q4_K_M"):
        assert re.findall(r"(?:(?<![A-Z])UD-)?I?Q\d(?:_[A-Z0-9]+)*", path)[-1] == tag
    assert tag.upper() in path
    others = [m for m in models if m.quant == model.quant and m.stem != model.stem]
    assert not others or tag in ("it", "i1-Q4_0")
    assert choose(candidates(paths, model.first), model.first, REPO, complete=False) == model


def test_removing_one_quantisation_removes_no_other(tmp_path: Path) -> None:
    names = ["m-Q4_K_M", "m-UD-Q4_K_M", "mtp-m-Q4_K_M"]
    library = made(tmp_path, [(REPO, COMMITS[0], f"{name}.gguf") for name in names])
    (model,) = select_one(library, f"{REPO}:Q4_K_M")
    remove(library, model)
    assert [m.files[0].path for m in installed_models(library)] == ["m-UD-Q4_K_M.gguf", "mtp-m-Q4_K_M.gguf"]
    with pytest.raises(NotFoundError, match="not on disk"):
        select_one(library, f"{REPO}:Q4_K_M")
    with pytest.raises(UsageError, match="is 2 models on this disk") as raised:
        select_one(library, REPO)
    assert f"{REPO}:UD-Q4_K_M, {REPO}:mtp-m-Q4_K_M.gguf" in raised.value.hint
    assert len(select(library, REPO)) == 2


def test_several_files_of_a_quantisation_are_refused(tmp_path: Path) -> None:
    paths = ["m-Q4_K_M.gguf", "m-it-Q4_K_M.gguf", "m-i1-Q4_K_M.gguf", "Q4_K_M/n-Q4_K_M.gguf"]
    library = made(tmp_path, [(REPO, COMMITS[0], path) for path in paths])
    for refused in (select_one, library.find):
        with pytest.raises(UsageError, match="may mean 4 files") as raised:
            refused(*((library, f"{REPO}:Q4_K_M") if refused is select_one else (f"{REPO}:Q4_K_M", "-m")))
        assert all(path in raised.value.hint for path in paths)
    assert [m.name for m in installed_models(library)] == [f"{REPO}:{path}" for path in sorted(paths)]


def test_only_another_quantisation_is_on_disk(tmp_path: Path) -> None:
    notes: list[str] = []

    class Listening(Listener):
        def note(self, message: str) -> None:
            notes.append(message)

    library = made(tmp_path, [(REPO, COMMITS[0], "m-UD-Q4_K_M.gguf")])
    library.listener = Listening()
    with pytest.raises(NetworkError, match=f"{REPO}:Q4_K_M is not on disk.*; on disk: {REPO}:UD-Q4_K_M"):
        library.find(f"{REPO}:Q4_K_M", "-m")
    assert not notes
    assert library.find(REPO, "-m").path.endswith("m-UD-Q4_K_M.gguf")
    assert notes == [f"{REPO}: m-UD-Q4_K_M.gguf is used, as it is on disk"]


def test_versions_of_a_model_have_names(tmp_path: Path) -> None:
    library = made(tmp_path, [(REPO, commit, "m-Q4_K_M.gguf") for commit in COMMITS])
    new, old = installed_models(library)
    assert (new.name, old.name) == (f"{REPO}:Q4_K_M", f"{REPO}@{old.commit}:Q4_K_M")
    remove(library, *select_one(library, old.name))
    assert [m.content for m in installed_models(library)] == [new.content]


def test_a_shared_part_stays(tmp_path: Path) -> None:
    for commit, second in zip(COMMITS, (b"2", b"3"), strict=True):
        put(tmp_path / "hub", REPO, "m-Q8_0-00001-of-00002.gguf", b"1", commit)
        put(tmp_path / "hub", REPO, "m-Q8_0-00002-of-00002.gguf", second, commit)
    library = made(tmp_path, [])
    new, old = installed_models(library)
    remove(library, old)
    (left,) = installed_models(library)
    assert left.content == new.content
    assert not left.model.missing
