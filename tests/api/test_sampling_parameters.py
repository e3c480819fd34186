"""Every sampling parameter, through command line, file, environment, Python and HTTP, as the engine gets it.

The parameters are those of SamplingParams: a new one is tested without a line here, unless its values are
texts or collections. The engine is the real one; a sitecustomize in its process writes down what each
generation started with.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specllama import LLM, SamplingParams
from specllama.core.sampling.params import PARAMETERS
from specllama.option import Option
from tests.support.command import Command
from tests.support.paths import ROOT
from tests.support.serving import Server

RECORDER = """
import os, sys
if "specllama.worker.main" in sys.orig_argv:
    from specllama.client import protocol

    encode = protocol.encode

    def recorded(message):
        line = encode(message)
        if isinstance(message, protocol.Started):
            with open(os.environ["SAMPLING_RECORD"], "ab") as file:
                file.write(line)
        return line

    protocol.encode = recorded
"""
FEW = {"max_tokens": 2}


@dataclass(frozen=True)
class Sample:
    """A value of a parameter: on a command line, in Python and JSON, and as the engine reports it."""

    text: str
    value: Any
    used: Any


TEXTS = {
    "logit_bias": Sample("7+1.5", {"7": 1.5}, {"7": 1.5}),
    "stop": Sample("zz", ["zz"], ["zz"]),
    "json_schema": Sample('{"type": "object"}', {"type": "object"}, '{"type": "object"}'),
    "grammar": Sample('root ::= "a"+', 'root ::= "a"+', 'root ::= "a"+'),
    "stop_token_ids": Sample("", [3], [3]),
    "min_tokens": Sample("", 2, 2),
    "skip_special_tokens": Sample("", False, False),
    "reasoning_budget_message": Sample("Enough.", "Enough.", "Enough."),
    "n": Sample("", 1, 1),
    "mirostat": Sample("2", 2, 2),
    "dry_base": Sample("1.5", 1.5, 1.5),
    "dry_sequence_breakers": Sample("x", ["x"], ["x"]),
    "samplers": Sample("top-k;infill;temp", ["top-k", "infill", "temp"], ["top_k", "infill", "temperature"]),
    "infill_sampling": Sample("", True, True),
}
CHAT = [{"role": "user", "content": "import os"}]
FLAG = {"logprobs": True, "top_logprobs": 3}
FORMS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "logprobs": {
        "/v1/completions": {"logprobs": 3},
        "/v1/chat/completions": FLAG,
        "/v1/responses": {"top_logprobs": 3},
        "/completion": {"n_probs": 3},
        "/api/chat": FLAG,
        "/api/generate": FLAG,
    },
    "n": {},
}
"""Bodies by path for parameters whose form differs from API to API; Messages has no log probabilities.
The engine writes one text.
"""
SHOWN: Mapping[str, Callable[[Any], Any]] = {
    "logit_bias": lambda value: [{"token": int(token), "bias": bias} for token, bias in value.items()],
}
"""From the value that the engine used to the one in llama-server's settings, where they differ."""


@dataclass(frozen=True)
class Route:
    """A route that writes a text, with a body. options: whether parameters stand in `options` instead."""

    path: str
    body: Mapping[str, Any]
    options: bool = False

    def bodies(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        """The path and a body for each name of a parameter, and for Ollama both places."""
        if name in FORMS:
            form = FORMS[name].get(self.path)
            return [] if form is None else [(self.path, {**self.body, **FEW, **form})]
        bodies = []
        for field in PARAMETERS[name].api_fields:
            given = {field: SAMPLES[name].value}
            few = {} if name == "max_tokens" else FEW
            if self.options:
                bodies.append((self.path, {**self.body, "options": {**few, **given}}))
            bodies.append((self.path, {**self.body, **few, **given}))
        return bodies


OLLAMA = {"stream": False}
ROUTES = (
    Route("/v1/completions", {"prompt": "import os"}),
    Route("/v1/chat/completions", {"messages": CHAT}),
    Route("/v1/responses", {"input": "import os"}),
    Route("/v1/messages", {"messages": CHAT}),
    Route("/completion", {"prompt": "import os"}),
    Route("/api/chat", {"messages": CHAT, **OLLAMA}, options=True),
    Route("/api/generate", {"prompt": "import os", **OLLAMA}, options=True),
)
N_OPTIONS = sum(route.options for route in ROUTES)


def sample(parameter: Option) -> Sample:
    """A value that is not the default."""
    if parameter.name in TEXTS:
        return TEXTS[parameter.name]
    value: Any = {int: 3, float: 0.5, bool: True}[parameter.kind]
    assert value != parameter.default
    return Sample("" if value is True else str(value), value, value)


SAMPLES = {name: sample(parameter) for name, parameter in PARAMETERS.items()}
FLAGGED = [name for name, parameter in PARAMETERS.items() if parameter.flags]
TOGETHER = [name for name in FLAGGED if name != "grammar"]  # which excludes a schema
STORED = [name for name, parameter in PARAMETERS.items() if parameter.stored]


class Record:
    """What the engines of a test were given, in order."""

    def __init__(self, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text(RECORDER, "utf-8")
        self.path = folder / "record"
        self.env = {"SAMPLING_RECORD": str(self.path), "PYTHONPATH": f"{folder}:{ROOT}"}

    def take(self) -> list[dict[str, Any]]:
        """The parameters of the generations since the last call."""
        params = [json.loads(line)[1]["params"] for line in self.path.read_bytes().splitlines()]
        self.path.unlink()
        return params


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return Record(tmp_path_factory.mktemp("record"))


@pytest.fixture(scope="module")
def llm(record: Record) -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in record.env.items():
            patch.setenv(name, value)
        with LLM(n_threads=1, calibrate=False) as one:
            yield one


@pytest.fixture(scope="module")
def server(record: Record, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server"), env=record.env) as one:
        yield one


def generated(command: Command, record: Record, *flags: str, **env: str) -> dict[str, Any]:
    """What a run with these flags gave the engine."""
    result = command("run", "--json", "--raw", "-p", "import os", *flags, env={**record.env, **env})
    assert result.code == 0 or "the answer was cut at -n" in result.err  # of a schema
    (params,) = record.take()
    return params


def expected(names: list[str]) -> dict[str, Any]:
    return {name: SAMPLES[name].used for name in names}


def only(params: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    return {name: params[name] for name in names}


def test_the_engine_uses_them_all() -> None:
    """What Started reports is SamplingParams, so that the tests below look at everything."""
    assert set(SAMPLES) == {field.name for field in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize("names", [TOGETHER, ["grammar", "max_tokens"]], ids=["all", "grammar"])
def test_command_line(tmp_path: Path, record: Record, names: list[str]) -> None:
    flags = [part for name in names for part in (PARAMETERS[name].flags[0], SAMPLES[name].text) if part]
    assert only(generated(Command(tmp_path), record, *flags), names) == expected(names)


def test_file(tmp_path: Path, record: Record) -> None:
    lines = [
        f"{name} = {json.dumps([SAMPLES[name].text] if PARAMETERS[name].many else SAMPLES[name].value)}\n"
        for name in STORED
    ]
    (tmp_path / "specllama.toml").write_text("".join(lines), "utf-8")
    assert only(generated(Command(tmp_path), record), STORED) == expected(STORED)


def test_environment(tmp_path: Path, record: Record) -> None:
    env = {f"SPECLLAMA_{name.upper()}": SAMPLES[name].text or "true" for name in STORED}
    assert only(generated(Command(tmp_path), record, **env), STORED) == expected(STORED)


@pytest.mark.parametrize("name", PARAMETERS)
def test_python(llm: LLM, record: Record, name: str) -> None:
    given = {**FEW, name: SAMPLES[name].value}
    llm.generate("import os", given)
    llm.generate("import os", SamplingParams(**given))
    assert [params[name] for params in record.take()] == [SAMPLES[name].used] * 2


@pytest.mark.parametrize("name", [name for name in PARAMETERS if name != "n"])
def test_http(server: Server, record: Record, name: str) -> None:
    """Under each of its names, on every route that writes a text; /infill has the fields of /completion."""
    sent = [one for route in ROUTES for one in route.bodies(name)]
    assert name in FORMS or len(sent) == (len(ROUTES) + N_OPTIONS) * len(PARAMETERS[name].api_fields) > 0
    for path, body in sent:
        answer = server.ask("POST", path, body)
        assert answer.status == 200, (path, body, answer.body)
    used = [(path, params[name]) for (path, _), params in zip(sent, record.take(), strict=True)]
    assert used == [(path, SAMPLES[name].used) for path, _ in sent]


@pytest.mark.parametrize("name", STORED)
def test_answers_show_them(server: Server, record: Record, name: str) -> None:
    """llama-server's answers show the value used, /props the default, Ollama's description of a model too."""
    body = {"prompt": "import os", **FEW, name: SAMPLES[name].value}
    used = server.post("/completion", body).json["generation_settings"]
    (params,) = record.take()
    if name == "infill_sampling":  # it is among the samplers
        assert "infill" in used["samplers"]
        return
    assert used[name] == SHOWN.get(name, lambda value: value)(params[name])
    assert name in server.get("/props").json["default_generation_settings"]["params"]
    if PARAMETERS[name].is_number and name not in ("max_tokens", "seed", "reasoning_budget"):
        assert f"\n{name} " in f"\n{server.post('/api/show', {'model': ''}).json['parameters']}"


def test_defaults_are_the_same_everywhere(tmp_path: Path, llm: LLM, server: Server, record: Record) -> None:
    first = generated(Command(tmp_path), record, "-n", "2")
    llm.generate("import os", FEW)
    assert server.ask("POST", "/v1/completions", {"prompt": "import os", **FEW}).status == 200
    for params in (first, *record.take()):
        assert SamplingParams(**{**params, "seed": None}) == SamplingParams(
            **FEW
        )  # of no file that says others
