"""Sessions of agents, to compare how many tokens servers evaluate (scripts.bench.reuse).

usage: python -m tests.agents.sessions record claude|codex|opencode --to FILE [--model MODEL]
       python -m tests.agents.sessions model SHAPE --vocab FILE --to FILE

`record` runs an agent that scripts/agents has installed against `specllama serve` with a small model: three
messages with two calls of its shell tool each, and then a message in a session of its own, as another agent
would send. The model's answers are scripted. The requests are written in the form of chat completions, as
specllama reads them.

`model` writes a tiny model of random weights, of a shape that tests/support has, with the vocabulary of
another file: llama.cpp's source has some.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from specllama.calls.history import function, settled
from specllama.data import EMBEDDED_TARGET
from specllama.server.dialects.anthropic import MessagesRequest
from specllama.server.dialects.openai.responses.request import ResponsesRequest
from specllama.server.dialects.openai.routes import ChatRequest
from specllama.server.dialects.shared.fields import checked
from tests.agents.test_codex import CONFIG
from tests.agents.test_opencode import settings
from tests.support import tinygguf, tinymtp
from tests.support.agents import Workplace, workplace
from tests.support.campaigns import command_parser
from tests.support.paths import ROOT
from tests.support.two_turns import TwoTurns

MESSAGES = ("Find out what sorts the letters.", "Now look at what counts them.", "And at what is left of it.")
N_CALLS, N_LINES = 2, 60  # of the shell tool for each message, and lines of a file that each shows
SOURCE, OTHER = ROOT / "specllama" / "core" / "sequence.py", "List the files, and say what they are for."
SHAPES = ("llama", "gemma3", "qwen35", "lfm2", "jamba", "mamba")
_TOOLS = {"claude": ("Bash", "command"), "codex": ("exec_command", "cmd"), "opencode": ("bash", "command")}
_BODIES: Mapping[str, Any] = {
    "messages": MessagesRequest, "completions": ChatRequest, "responses": ResponsesRequest,
}  # fmt: skip


def record(agent: str, model: str) -> list[dict[str, Any]]:
    """The requests of a session, as bodies of chat completions. model: that answers."""

    class Script(TwoTurns):
        """Each call shows other lines."""

        def _has_tool(self, body: dict[str, Any], schema: str, n_results: int) -> bool:
            first = 1 + N_LINES * n_results
            command = f"sed -n {first},{first + N_LINES}p {SOURCE.name}"
            self.schema["properties"][argument] = {"const": command}
            return super()._has_tool(body, schema, n_results)

    tool, argument = _TOOLS[agent]
    more = {"description": "read"} if agent == "claude" else {}
    script = Script(tool, **{argument: ""}, **more)
    with tempfile.TemporaryDirectory() as folder:
        flags = ("-m", model, "-md", "none", "--alias", "*", "--cache-disk", "0")
        with workplace(Path(folder), script, *flags) as place:
            shutil.copy(SOURCE, place.work)
            run = _RUNNERS[agent](place)
            for i, text in enumerate(MESSAGES):
                script.n_calls = N_CALLS * (i + 1)
                run(text, i > 0)
            script.n_calls = N_CALLS
            run(OTHER, False)
            sent = list(place.proxy.sent)
    return [request for path, body in sent if (request := _as_chat(path, body)) is not None]


def _claude(place: Workplace) -> Callable[[str, bool], None]:
    environ = {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_AUTH_TOKEN": "unused",
        "CLAUDE_CONFIG_DIR": str(place.home),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "API_TIMEOUT_MS": "500000",
        "CLAUDE_CODE_MAX_RETRIES": "0",
    }

    def run(text: str, goes_on: bool) -> None:
        on = ["--continue"] if goes_on else []
        place.run("claude", "-p", *on, text, "--allowedTools", "Bash", **environ)

    return run


def _codex(place: Workplace) -> Callable[[str, bool], None]:
    (place.home / "config.toml").write_text(CONFIG % place.url, "utf-8")

    def run(text: str, goes_on: bool) -> None:
        resume = ["resume", "--last"] if goes_on else []
        place.run("codex", "exec", *resume, "--skip-git-repo-check", text, CODEX_HOME=str(place.home))

    return run


def _opencode(place: Workplace) -> Callable[[str, bool], None]:
    (place.work / "opencode.json").write_text(json.dumps(settings(place.url)), "utf-8")

    def run(text: str, goes_on: bool) -> None:
        on = ["--continue"] if goes_on else []
        place.run("opencode", "run", "--pure", *on, text, OPENCODE_DISABLE_MODELS_FETCH="1")

    return run


_RUNNERS = {"claude": _claude, "codex": _codex, "opencode": _opencode}


def _as_chat(path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """A request in any API as one of chat completions, None for those that write nothing."""
    kind = _BODIES.get(path.partition("?")[0].rpartition("/")[2])
    chat = checked(kind, body).generation({}, {}).chat if kind is not None else None
    if chat is None:
        return None
    messages = settled(chat.messages, system=True, systems=False)  # one system message, the first
    request = {
        "messages": [_with_texts(message) for message in messages],
        "chat_template_kwargs": dict(chat.variables),
    }
    tools = [function(tool) for tool in chat.tools.tools] if chat.tools is not None else []
    return request | ({"tools": tools} if tools else {})


def _with_texts(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its calls as JSON."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, **({"tool_calls": calls} if calls else {})}


def write_model(shape: str, vocab: Path, to: Path) -> None:
    """Write a model of this shape; windows have 512 tokens."""
    build = {**tinygguf.BUILDERS, "qwen35": tinymtp.qwen35}[shape]
    with tempfile.TemporaryDirectory() as folder:
        more = {"n_swa": 512} if shape == "gemma3" else {}
        small = gguf.GGUFReader(build(Path(folder) / "small.gguf", n_ctx_train=1 << 17, **more))
        words = gguf.GGUFReader(vocab)
        n_vocab = len(words.fields["tokenizer.ggml.tokens"].data)
        writer, rng = gguf.GGUFWriter(to, shape), np.random.default_rng(0)
        fields = {f.name: f for f in small.fields.values() if not f.name.startswith("tokenizer.ggml.")}
        fields |= {f.name: f for f in words.fields.values() if f.name.startswith("tokenizer.")}
        for field in fields.values():
            if field.name == f"{shape}.vocab_size":
                writer.add_vocab_size(n_vocab)
            elif field.name != gguf.Keys.General.ARCHITECTURE and not field.name.startswith("GGUF."):
                inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(field.name, field.contents(), field.types[0], inner)
        for tensor in small.tensors:
            data = tensor.data
            if tensor.name in ("token_embd.weight", "output.weight"):
                data = rng.standard_normal((n_vocab, data.shape[1]), dtype=np.float32) * data.std()
            writer.add_tensor(tensor.name, data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def main() -> None:
    parser = command_parser("tests.agents.sessions", __doc__)
    ways = parser.add_subparsers(dest="way", required=True)
    recording = ways.add_parser("record", help="record the requests of an agent's session")
    recording.add_argument("agent", choices=sorted(_RUNNERS))
    recording.add_argument("--to", type=Path, required=True, help="file for the requests, about 1 MB")
    recording.add_argument("--model", default=str(EMBEDDED_TARGET), help="a small one is faster")
    modelling = ways.add_parser("model", help="write a model of random weights")
    modelling.add_argument("shape", choices=SHAPES)
    modelling.add_argument("--vocab", type=Path, required=True, help="GGUF file with the vocabulary")
    modelling.add_argument("--to", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.way == "model":
        try:
            write_model(arguments.shape, arguments.vocab, arguments.to)
        except OSError as error:
            parser.error(f"{error.filename}: {error.strerror}")
        except ValueError as error:
            parser.error(f"{arguments.vocab}: {error}")
    else:
        arguments.to.write_text(json.dumps(record(arguments.agent, arguments.model)))


if __name__ == "__main__":
    main()
