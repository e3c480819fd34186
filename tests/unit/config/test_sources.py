"""The sources of option values, and the errors for invalid ones."""

# ruff: noqa: ARG005
from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from specllama.config.sources import project_file, read_environment, read_file, resolve, user_file
from specllama.errors import ConfigError

KINDS = {
    "model": (str, False),
    "n_ctx": (int, False),
    "temperature": (float, False),
    "mlock": (bool, False),
    "drafters": (str, True),
    "tensor_split": (float, True),
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """A temporary home, so that the developer's own config is not read."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(
        platformdirs, "user_config_dir", lambda *args, **kwargs: str(tmp_path / ".config/specllama")
    )
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


# Precedence


def test_without_values_nothing_is_set(home):
    assert resolve({}, KINDS, {}, home) == {}


def test_precedence_is_flag_environment_project_user(home):
    write(
        home / ".config/specllama/config.toml", 'model = "user"\nn_ctx = 1\ntemperature = 1\nmlock = true\n'
    )
    write(home / "work/specllama.toml", 'model = "project"\nn_ctx = 2\ntemperature = 2\n')
    environ = {"SPECLLAMA_MODEL": "environment", "SPECLLAMA_N_CTX": "3"}
    assert resolve({"model": "flag"}, KINDS, environ, home / "work") == {
        "model": "flag",
        "n_ctx": 3,
        "temperature": 2.0,
        "mlock": True,
    }


def test_a_flag_that_is_false_still_wins(home):
    assert resolve(
        {"mlock": False, "n_ctx": 0}, KINDS, {"SPECLLAMA_MLOCK": "1", "SPECLLAMA_N_CTX": "9"}, home
    ) == {
        "mlock": False,
        "n_ctx": 0,
    }


def test_project_file_is_found_from_a_subdirectory(home):
    path = write(home / "work/specllama.toml", "")
    below = home / "work/src/deep"
    below.mkdir(parents=True)
    assert project_file(below) == path
    (home / "work/src/.git").mkdir()
    assert project_file(below) is None


def test_project_file_above_the_home_directory_is_ignored(home, monkeypatch):
    write(home / "specllama.toml", "")
    (home / "me/work").mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: home / "me")
    assert project_file(home / "me/work") is None


def test_user_file_can_be_overridden(home):
    assert user_file({}) is None
    path = write(home / ".config/specllama/config.toml", "")
    assert user_file({}) == path
    other = write(home / "other.toml", "")
    assert user_file({"SPECLLAMA_CONFIG": str(other)}) == other
    with pytest.raises(ConfigError, match=r"SPECLLAMA_CONFIG names .*none\.toml"):
        user_file({"SPECLLAMA_CONFIG": str(home / "none.toml")})


# Files


def test_reads_a_file(home):
    path = write(
        home / "a.toml",
        'model = "8B"\nn-ctx = 4096\ntemperature = 1\nmlock = false\n'
        'drafters = ["copy"]\ntensor_split = [1, 2.5]\n',
    )
    got = read_file(path, KINDS)
    assert got == {
        "model": "8B",
        "n_ctx": 4096,
        "temperature": 1.0,
        "mlock": False,
        "drafters": ["copy"],
        "tensor_split": [1.0, 2.5],
    }
    assert isinstance(got["temperature"], float)


def test_a_single_value_is_a_list_of_one(home):
    assert read_file(write(home / "a.toml", 'drafters = "copy"'), KINDS) == {"drafters": ["copy"]}


@pytest.mark.parametrize(
    ("text", "line", "names"),
    [
        ('model = "a"\n\ntemprature = 1\n', 3, "unknown key 'temprature'"),
        ('# temprature\nmodel = "temprature = 1"\n"temprature" = 1\n', 3, "temprature"),
        ('model = "a"\n[sampling]\ntemperature = 1\n', 2, "unknown key 'sampling'"),
        ('model = "a"\nserve.port = 1\n', 2, "unknown key 'serve'"),
        ('model = "a"\nn_ctx = "many"\n', 2, "n_ctx must be a whole number, not 'many'"),
        ("n_ctx = 4.5", 1, "whole number"),
        ("n_ctx = true", 1, "whole number"),
        ("\n\ntemperature = [1]", 3, "temperature must be a number"),
        ("mlock = 1", 1, "mlock must be true or false"),
        ("model = true", 1, "model must be a text"),
        ("model = 1979-05-27", 1, "model must be a text"),
        ('tensor_split = [1, "x"]', 1, "tensor_split must be a number, not 'x'"),
        ("drafters = {a = 1}", 1, "drafters must be a text"),
    ],
)
def test_errors_name_file_line_and_key(home, text, line, names):
    path = write(home / "a.toml", text)
    with pytest.raises(ConfigError, match=names) as caught:
        read_file(path, KINDS)
    assert f"{path}, line {line}:" in caught.value.message
    assert caught.value.exit_code == 2


def test_unknown_keys_come_with_a_suggestion(home):
    with pytest.raises(ConfigError) as caught:
        read_file(write(home / "a.toml", "temprature = 1"), KINDS)
    assert caught.value.hint == "did you mean temperature?"
    with pytest.raises(ConfigError) as caught:
        read_file(write(home / "a.toml", "qqqqqq = 1"), KINDS)
    assert "n_ctx" in caught.value.hint


@pytest.mark.parametrize("text", ["model = ", "model = 'a'\nmodel = 'b'", "[[[", "= 1", "\x00"])
def test_invalid_toml_is_an_error_with_file_and_line(home, text):
    path = write(home / "a.toml", text)
    with pytest.raises(ConfigError, match=r"is not TOML: .*line \d+") as caught:
        read_file(path, KINDS)
    assert str(path) in caught.value.message


def test_an_unreadable_file_is_an_error(home):
    (home / "a.toml").write_bytes(b"model = '\xff'")
    with pytest.raises(ConfigError, match=r"a\.toml cannot be read"):
        read_file(home / "a.toml", KINDS)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_file(home, KINDS)


def test_same_key_twice_in_two_spellings_is_an_error(home):
    with pytest.raises(ConfigError, match=r"line 2: .*n.ctx.* twice"):
        read_file(write(home / "a.toml", "n_ctx = 1\nn-ctx = 2"), KINDS)


def test_deeply_nested_toml_is_an_error(home):
    with pytest.raises(ConfigError):
        read_file(write(home / "a.toml", "model = " + "[" * 100_000), KINDS)


# Environment


def test_reads_the_environment():
    environ = {
        "SPECLLAMA_MODEL": "8B",
        "SPECLLAMA_N_CTX": "4096",
        "SPECLLAMA_TEMPERATURE": "0.5",
        "SPECLLAMA_DRAFTERS": "model,copy,",
        "SPECLLAMA_TENSOR_SPLIT": "3, 1",
        "SPECLLAMA_BACKEND": "cpu",
        "SPECLLAMA_CACHE": "/x",
        "PATH": "/bin",
    }
    assert read_environment(environ, KINDS) == {
        "model": "8B",
        "n_ctx": 4096,
        "temperature": 0.5,
        "drafters": ["model", "copy"],
        "tensor_split": [3.0, 1.0],
    }


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("TRUE", True), ("on", True), ("no", False), ("0", False), ("", False)]
)
def test_reads_booleans_from_the_environment(text, value):
    assert read_environment({"SPECLLAMA_MLOCK": text}, KINDS) == {"mlock": value}


@pytest.mark.parametrize(
    ("variable", "text", "names"),
    [
        ("SPECLLAMA_N_CTX", "many", "SPECLLAMA_N_CTX must be a whole number, not 'many'"),
        ("SPECLLAMA_N_CTX", "1.5", "SPECLLAMA_N_CTX must be a whole number"),
        ("SPECLLAMA_N_CTX", "", "SPECLLAMA_N_CTX must be a whole number"),
        ("SPECLLAMA_TEMPERATURE", "hot", "SPECLLAMA_TEMPERATURE must be a number"),
        ("SPECLLAMA_MLOCK", "perhaps", "SPECLLAMA_MLOCK must be true or false"),
        ("SPECLLAMA_TENSOR_SPLIT", "1,x", "SPECLLAMA_TENSOR_SPLIT must be a number, not 'x'"),
        ("SPECLLAMA_TEMPRATURE", "1", "unknown environment variable SPECLLAMA_TEMPRATURE"),
    ],
)
def test_errors_name_the_variable(variable, text, names):
    with pytest.raises(ConfigError, match=names):
        read_environment({variable: text}, KINDS)
