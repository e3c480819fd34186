"""The sources of option values, and the errors for invalid ones."""

# ruff: noqa: ARG005
from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import platformdirs
import pytest

from specllama.cli.app import run_app
from specllama.config import build, toml_file
from specllama.config.options import STORED
from specllama.config.sources import project_file, read_environment, read_file, resolve, user_file
from specllama.config.toml_file import parse_toml
from specllama.errors import ConfigError, UsageError


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


# Other names


def test_long_flags_are_names_too(home):
    write(home / "work/specllama.toml", "ctx-size = 5\ntemp = 0.5\n")
    values = resolve({}, {"SPECLLAMA_CTX_SIZE": "9"}, home / "work")
    assert values == {"n_ctx": 9, "temperature": 0.5}
    assert values.origins["n_ctx"] == "SPECLLAMA_CTX_SIZE"
    twice = {"SPECLLAMA_CTX_SIZE": "9", "SPECLLAMA_N_CTX": "8"}
    with pytest.raises(ConfigError, match="SPECLLAMA_CTX_SIZE and SPECLLAMA_N_CTX set the same option"):
        read_environment(twice)
    with pytest.raises(ConfigError) as caught:
        read_environment({"SPECLLAMA_CTX_SIZ": "9"})
    assert caught.value.hint.startswith("did you mean SPECLLAMA_CTX_SIZE")
    write(home / "work/specllama.toml", "ctx_size = 5\nn_ctx = 5\n")
    with pytest.raises(ConfigError, match="set twice"):
        resolve({}, {}, home / "work")


def test_variables_of_a_service_are_left_out():
    environ = {
        "SPECLLAMA_PORT": "tcp://10.0.0.1:80",
        "SPECLLAMA_SERVICE_PORT_HTTP": "80",
        "SPECLLAMA_API_PORT_80_TCP_ADDR": "10.0.0.1",
        "SPECLLAMA_N_CTX": "4",
    }
    values = read_environment(environ)
    assert (values, values.ignored) == ({"n_ctx": 4}, tuple(environ)[:3])
    assert values.overlaid({"model": "x"}).ignored == values.ignored


# Precedence


def test_without_values_nothing_is_set(home):
    assert resolve({}, {}, home) == {}


def test_precedence_is_flag_environment_project_user(home):
    write(
        home / ".config/specllama/config.toml", 'model = "user"\nn_ctx = 1\ntemperature = 1\nmlock = true\n'
    )
    write(home / "work/specllama.toml", "n_ctx = 2\ntemperature = 2\n")
    environ = {"SPECLLAMA_MODEL": "environment", "SPECLLAMA_N_CTX": "3"}
    assert resolve({"model": "flag"}, environ, home / "work") == {
        "model": "flag",
        "n_ctx": 3,
        "temperature": 2.0,
        "mlock": True,
    }


def test_a_flag_that_is_false_still_wins(home):
    assert resolve(
        {"mlock": False, "n_ctx": 0},
        {"SPECLLAMA_MLOCK": "1", "SPECLLAMA_N_CTX": "9"},
        home,
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
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match=r"config\.toml, the place of your settings, is not a file"):
        user_file({})


def test_a_wrong_model_is_blamed_on_what_names_it(home, monkeypatch, capsys):
    monkeypatch.setenv("SPECLLAMA_CONFIG", str(home / "mine.toml"))
    for text, command, flags in (
        ("model = 'none_1'", "serve", "-m"),
        ("draft_model = 'none_1'", "serve -m pydoc", "-md"),
        ("embeddings = 'none_1'", "serve", ""),
    ):
        write(home / "mine.toml", text)
        assert run_app(command.split()) == 3
        what = "there is no file none_1, and no model of that name"
        assert f"mine.toml, line 1: {text.split()[0]}: {what}" in capsys.readouterr().err
        if flags:
            assert run_app([*command.split(), flags, "none_1"]) == 3
            assert f"error: {flags}: {what}" in capsys.readouterr().err


def test_config_says_which_variables_and_files_it_leaves_out(home, monkeypatch, capsys):
    monkeypatch.setenv("SPECLLAMA_SERVICE_HOST", "10.0.0.1")
    monkeypatch.chdir(home)
    write(home / "models.toml", "[model.x]\nrepo = 'a/b'\n")
    assert run_app(["config"]) == 0
    err = capsys.readouterr().err
    assert "SPECLLAMA_SERVICE_HOST is of a service of that name, and no settings" in err
    assert f"{home / 'models.toml'} is left out, as of another program" in err


def test_config_names_the_fault_of_a_value(home, monkeypatch, capsys):
    monkeypatch.setenv("SPECLLAMA_CONFIG", str(home / "mine.toml"))
    for text, fault in (
        ("seed = 'x'", "line 1: seed must be a whole number, not 'x'"),
        ("\ntemperature = 50000", "line 2: temperature must be a number from 0 to 10000"),
        ("stop = 5", "line 1: stop must be a text or a list of texts, not 5"),
        ("chat_template = 5", "line 1: chat_template must be a text, not 5"),
        ("port = 99999", "line 1: port must be from 0 to 65535, not 99999"),
        ("n_ctx = 99999999999", "line 1: n_ctx must be a whole number from 0 to 2147483647"),
    ):
        write(home / "mine.toml", text)
        assert run_app(["config"]) == 2
        shown = capsys.readouterr()
        assert "your settings" in shown.out
        assert fault in shown.err
    write(home / "mine.toml", "host = '0.0.0.0'")
    assert run_app(["config"]) == 0
    capsys.readouterr()
    monkeypatch.delenv("SPECLLAMA_CONFIG")
    place = home / ".config/specllama/config.toml"
    place.parent.mkdir(parents=True)
    os.mkfifo(place)
    assert run_app(["config"]) == 2
    assert f"{place}, not a file" in capsys.readouterr().out


# A project's file


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ('model = "me/evil"\n', 1, "model"),
        ("n_ctx = 1\n\nmlock = true\n", 3, "mlock"),
        ("n_ctx = 1\n'tensor-split' = [\n1,\n2]\n", 2, "tensor-split"),
        ('drafters = """\nmodel = 1\n"""\n"\\u006dodel" = "x"\n', 4, "model"),
        ("# model = 1\ndrafters = ['''\nmodel = 2''', 'model = 3'] # model = 4\nmodel='5'\n", 4, "model"),
        ("\ufeffn_ctx = 1\r\nmodel = 'x'\r\n", 2, "model"),
    ],
)
def test_a_project_may_not_set_other_options(home, text, line, key):
    path = write(home / "work/specllama.toml", text)
    with pytest.raises(ConfigError) as caught:
        resolve({"model": "flag"}, {}, home / "work")
    assert caught.value.exit_code == 2
    assert caught.value.message == f"{path}, line {line}: {key} cannot be set by a project's specllama.toml"
    assert f"set it in {home}/.config/specllama/config.toml, by a flag or by SPECLLAMA_" in caught.value.hint


def test_a_draft_goes_with_the_model_of_its_source(home):
    def pair(flags, environ=(), text='model = "8B"\ndraft_model = "1B"\n'):
        write(home / ".config/specllama/config.toml", text)
        values = resolve(flags, dict(environ), home / "work")
        names = [values.get(name) for name in ("model", "hf_repo", "draft_model", "hf_repo_draft")]
        return [name for name in names if name], values.left_out.rpartition(": ")[2]

    assert pair({}) == pair({"model": "8B"}) == (["8B", "1B"], "")
    assert pair({"model": "demo"}) == (["demo"], "draft_model")
    assert pair({"hf_repo": "a/b"}) == (["a/b"], "draft_model")
    assert pair({"model": "demo", "draft_model": "x"}) == (["demo", "x"], "")
    assert pair({"hf_repo_draft": "a/b"}) == (["8B", "a/b"], "")
    assert pair({}, {"SPECLLAMA_MODEL": "demo"}) == (["demo"], "draft_model")
    assert pair({}, {"SPECLLAMA_DRAFT_MODEL": "x"}) == (["8B", "x"], "")
    assert pair({"model": "demo"}, {"SPECLLAMA_DRAFT_MODEL": "x"}) == (["demo", "x"], "")
    assert pair({"model": "demo"}, text='draft_model = "1B"\n') == (["demo", "1B"], "")
    assert pair({"model": "demo"}, text='model = "8B"\ndraft_model = "none"\n') == (["demo", "none"], "")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("m = 'x.gguf'", "unknown key 'm'", "did you mean model?"),
        ("modell = 'x.gguf'", "unknown key 'modell'", "did you mean model"),
        ("zzz = 1", "unknown key 'zzz'", "docs/options.md names them all"),
        ("[a]\nport = 1", "unknown table 'a'", "options stand in no table"),
        ("[[serve]]\nport = 1", "unknown table 'serve'", "options stand in no table"),
        ("draftmax = 3", "unknown key 'draftmax'", "did you mean draft_max?"),
        ("cache = 5", "unknown key 'cache'", "did you mean cache_ram or cache_disk or share_cache?"),
        ("draft = 'x.gguf'", "draft must be a whole number", "draft_model names a draft model"),
    ],
)
def test_a_wrong_key_gets_a_short_hint(home, text, message, hint):
    path = write(home / "config.toml", text)
    with pytest.raises(UsageError) as caught:
        build.load_settings(read_file(path))
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert len(caught.value.hint) < 80


def test_a_number_out_of_range_is_not_taken_for_a_draft_model():
    for name in ("draft_max", "draft_tree"):
        with pytest.raises(UsageError, match="not '-1'") as caught:
            build.load_settings({name: "-1"})
        assert caught.value.hint == ""


def test_the_projects_file_is_reported(home):
    path = write(home / "work/specllama.toml", "n_ctx = 2\n")
    values = resolve({"n_ctx": 3}, {"SPECLLAMA_MODEL": "m"}, home / "work")
    assert values.project == path
    assert values.without("model").overlaid({"mlock": True}).project == path
    write(path, "# nothing\n")
    assert resolve({}, {}, home / "work").project is None


def test_the_users_own_file_is_no_projects(home):
    path = write(home / "work/specllama.toml", 'model = "mine"\n')
    environ = {"SPECLLAMA_CONFIG": str(path)}
    values = resolve({}, environ, home / "work")
    assert (values, values.project) == ({"model": "mine"}, None)


def test_what_else_has_the_name_of_a_projects_file_is_an_error(home):
    path, other = home / "work/specllama.toml", write(home / "other.toml", "n_ctx = 1\n")
    path.parent.mkdir()
    for make, needle in (
        (path.mkdir, "is not a file"),
        (lambda: os.mkfifo(path), "is not a file"),
        (lambda: path.symlink_to(other), "is a symbolic link"),
        (lambda: path.symlink_to(home / "nowhere"), "is a symbolic link"),
        (lambda: path.write_bytes(b"n_ctx = 1\n# \xff"), "line 2 is not UTF-8"),
        (lambda: path.write_text("#" * (toml_file.MAX_BYTES + 1)), "is longer than 256 KiB"),
    ):
        make()
        with pytest.raises(ConfigError, match=needle) as caught:
            resolve({}, {}, home / "work")
        assert str(path) in caught.value.message
        path.rmdir() if path.is_dir() else path.unlink()
    write(home / ".config/specllama/config.toml", "").unlink()
    (home / ".config/specllama/config.toml").symlink_to(other)
    assert resolve({}, {}, home / "work") == {"n_ctx": 1}, "a user's may be a link"


# Bounds


def test_the_costliest_files_are_read_soon(home):
    full = toml_file.MAX_BYTES - 100
    for text in (
        "a." * (full // 2) + "a = 1",
        "x = {" + "a." * (full // 2) + "a = 1}",
        "[" + "a." * (full // 2) + "a]",
        "x = " + "[" * full,
        "x = " + "{a=" * (full // 3),
        "x = [" + "[]," * (full // 30) + "]",
        '"""' * (full // 3),
        '"\\' * (full // 2),
        "x = 0x" + "f" * full,
        "x = " + "9" * full,
        "n_ctx = 0x" + "f" * full,
        "temperature = 0x" + "f" * 2000,
        " " * full,
    ):
        path, began = write(home / "a.toml", text), time.monotonic()
        with pytest.raises(ConfigError) if text.strip() else contextlib.nullcontext() as caught:
            read_file(path)
        assert time.monotonic() - began < 5, text[:20]
        assert caught is None or len(caught.value.message) < 600 + len(str(home))


def test_every_key_has_its_line():
    text = """# a = 1
a.b = 1
"q.r" = [ # x = 1
    1, "a = 2", [2,
  3]]
[t]   # [u]
c = '''
d = 1'''
d = { e = 1, f.g = 2 }
[[p]]
k = "\\"x"
[p.s]
m = 1.5
[[p]]
k = 2
['t'.  "v"]
w = 1979-05-27T07:32:00Z
"""
    file = parse_toml(Path("x"), text)
    places = {
        ("a",): 2, ("a", "b"): 2, ("q.r",): 3, ("t",): 6, ("t", "c"): 7, ("t", "d"): 9, ("t", "d", "f"): 9,
        ("p",): 10, ("p", 0): 10, ("p", 0, "k"): 11, ("p", 0, "s"): 12, ("p", 0, "s", "m"): 13,
        ("p", 1): 14, ("p", 1, "k"): 15, ("t", "v"): 16, ("t", "v", "w"): 17, ("none",): 1,
    }  # fmt: skip
    assert {keys: file.where(*keys) for keys in places} == {k: f"x, line {n}" for k, n in places.items()}


# Files


def test_reads_a_file(home):
    path = write(
        home / "a.toml",
        'model = "8B"\nn-ctx = 4096\ntemperature = 1\nmlock = false\nstop = ["x"]\ntensor_split = [1, 2.5]\n',
    )
    got = read_file(path)
    assert got == {
        "model": "8B",
        "n_ctx": 4096,
        "temperature": 1.0,
        "mlock": False,
        "stop": ["x"],
        "tensor_split": "1,2.5",
    }
    assert isinstance(got["temperature"], float)


def test_a_single_value_is_a_list_of_one(home):
    assert read_file(write(home / "a.toml", 'stop = "x"')) == {"stop": ["x"]}


@pytest.mark.parametrize(
    ("value", "expected"), [('"a,b"', "a,b"), ('["a", "b"]', "a,b"), ("[]", ""), ("[3, 1.5]", "3,1.5")]
)
def test_a_text_of_items_may_be_an_array(home, value, expected):
    assert read_file(write(home / "a.toml", f"devices = {value}")) == {"devices": expected}


@pytest.mark.parametrize(
    ("text", "line", "names"),
    [
        ('model = "a"\n\ntemprature = 1\n', 3, "unknown key 'temprature'"),
        ('# temprature\nmodel = "temprature = 1"\n"temprature" = 1\n', 3, "temprature"),
        ('model = "a"\n[sampling]\ntemperature = 1\n', 2, "unknown table 'sampling'"),
        ('model = "a"\nserve.port = 1\n', 2, "unknown table 'serve'"),
        ('model = "a"\nn_ctx = "many"\n', 2, "n_ctx must be a whole number, not 'many'"),
        ("n_ctx = 4.5", 1, "whole number"),
        ("n_ctx = true", 1, "whole number"),
        ("\n\ntemperature = [1]", 3, "temperature must be a number"),
        ("mlock = 1", 1, "mlock must be true or false"),
        ("model = true", 1, "model must be a text"),
        ("model = 1979-05-27", 1, "model must be a text"),
        ("stop = ['x', [1]]", 1, "stop must be a text or a list of texts, not"),
        ("stop = {a = 1}", 1, "stop must be a text or a list of texts, not"),
        ("tensor_split = {a = 1}", 1, "tensor_split must be a text or a list of texts, not"),
        ('tensor_split = ["a", ["b"]]', 1, "tensor_split must be a text or a list of texts, not"),
        ('devices = [["b"]]', 1, r"devices must be a text or a list of texts, not \['b'\]"),
        ("model = 'x'\nseed = " + "1" * 5000, 2, "seed must be a whole number from -9223372036854775808 to"),
        ("temperature = " + "1" * 2000, 1, "temperature must be a number from 0 to 10000, not a number of"),
    ],
)
def test_errors_name_file_line_and_key(home, text, line, names):
    path = write(home / "a.toml", text)
    with pytest.raises(ConfigError, match=names) as caught:
        read_file(path)
    assert f"{path}, line {line}:" in caught.value.message
    assert caught.value.exit_code == 2


def test_unknown_keys_come_with_a_suggestion(home):
    with pytest.raises(ConfigError) as caught:
        read_file(write(home / "a.toml", "temprature = 1"))
    assert caught.value.hint == "did you mean temperature?"
    with pytest.raises(ConfigError) as caught:
        read_file(write(home / "a.toml", "qqqqqq = 1"))
    assert caught.value.hint == "docs/options.md names them all"


@pytest.mark.parametrize("text", ["model = ", "model = 'a'\nmodel = 'b'", "[[[", "= 1", "\x00"])
def test_invalid_toml_is_an_error_with_file_and_line(home, text):
    path = write(home / "a.toml", text)
    with pytest.raises(ConfigError, match=r"is not TOML: .*line \d+") as caught:
        read_file(path)
    assert str(path) in caught.value.message


def test_an_unreadable_file_is_an_error(home):
    (home / "a.toml").write_bytes(b"model = '\xff'")
    with pytest.raises(ConfigError, match=r"a\.toml cannot be read"):
        read_file(home / "a.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_file(home)


def test_same_key_twice_in_two_spellings_is_an_error(home):
    with pytest.raises(ConfigError, match=r"line 2: .*n.ctx.* twice"):
        read_file(write(home / "a.toml", "n_ctx = 1\nn-ctx = 2"))


def test_deeply_nested_toml_is_an_error(home):
    with pytest.raises(ConfigError):
        read_file(write(home / "a.toml", "model = " + "[" * 100_000))


# Environment


def test_reads_the_environment():
    given = ("model", "n_ctx", "temperature", "stop", "tensor_split")
    environ = {
        "SPECLLAMA_MODEL": "8B",
        "SPECLLAMA_N_CTX": "4096",
        "SPECLLAMA_TEMPERATURE": "0.5",
        "SPECLLAMA_STOP": "x,y,",
        "SPECLLAMA_TENSOR_SPLIT": "3, 1",
        "SPECLLAMA_BACKEND": "cpu",
        "SPECLLAMA_CACHE": "/x",
        "SPECLLAMA_NO_SUCH_OPTION": "",
        "PATH": "/bin",
        **{f"SPECLLAMA_{name.upper()}": "" for name in STORED if name not in given},
    }
    assert read_environment(environ) == {
        "model": "8B",
        "n_ctx": 4096,
        "temperature": 0.5,
        "stop": ["x", "y"],
        "tensor_split": "3, 1",
    }


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("TRUE", True), ("on", True), ("no", False), ("0", False)]
)
def test_reads_booleans_from_the_environment(text, value):
    assert read_environment({"SPECLLAMA_MLOCK": text}) == {"mlock": value}


@pytest.mark.parametrize(
    ("variable", "text", "names"),
    [
        ("SPECLLAMA_N_CTX", "many", "SPECLLAMA_N_CTX must be a whole number, not 'many'"),
        ("SPECLLAMA_N_CTX", "1.5", "SPECLLAMA_N_CTX must be a whole number"),
        ("SPECLLAMA_TEMPERATURE", "hot", "SPECLLAMA_TEMPERATURE must be a number"),
        ("SPECLLAMA_MLOCK", "perhaps", "SPECLLAMA_MLOCK must be true or false"),
        ("SPECLLAMA_TEMPRATURE", "1", "unknown environment variable SPECLLAMA_TEMPRATURE"),
    ],
)
def test_errors_name_the_variable(variable, text, names):
    with pytest.raises(ConfigError, match=names):
        read_environment({variable: text})


def test_a_wrong_type_is_answered_with_all_that_is_allowed(home: Path) -> None:
    cases = {
        "draft_tree": "a number, auto or off",
        "n-gpu-layers": "a number, auto or all",
        "flash-attn": "on, off or auto",
        "model": "a text",
    }
    for key, allowed in cases.items():
        with pytest.raises(ConfigError, match=f"{key} must be {allowed}, not True"):
            read_file(write(home / "a.toml", f"{key} = true"))
