"""How many tokens of its prompts a server evaluates in the sessions of agents.

    python -m scripts.bench.reuse model qwen35 --vocab ggml-vocab-qwen35.gguf --to qwen35.gguf
    python -m scripts.bench.reuse record codex --to codex.json
    python -m scripts.bench.reuse replay codex.json --at http://127.0.0.1:8080

`model` writes a tiny model of random weights, of a shape that tests/support has, with the vocabulary of
another file: llama.cpp's source has some.

`record` runs an agent that scripts/agents has installed (claude, codex, opencode) against `specllama serve`
with a small model: three messages with two calls of its shell tool each, and then a message in a
session of its own, as another agent would send. What the model answers is scripted. The requests are written
in the form of chat completions, as specllama reads them.

`replay` sends these requests to any server with /v1/chat/completions whose answers have llama-server's
timings, for eight tokens each, and prints for each the tokens of its prompt and those that were evaluated.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from scripts import cli
from specllama.data import EMBEDDED_TARGET

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = ("Find out what sorts the letters.", "Now look at what counts them.", "And at what is left of it.")
N_CALLS, N_LINES = 2, 60  # of the shell tool for each message, and lines of a file that each shows
SOURCE, OTHER = ROOT / "specllama" / "core" / "sequence.py", "List the files, and say what they are for."
SHAPES = ("llama", "gemma3", "qwen35", "lfm2", "jamba", "mamba")
_TOOLS = {"claude": ("Bash", "command"), "codex": ("exec_command", "cmd"), "opencode": ("bash", "command")}
_SECONDS = 600


def record(agent: str, model: str) -> list[dict[str, Any]]:
    """The requests of a session, as bodies of chat completions. model: that answers."""
    from tests.support.agents import workplace
    from tests.support.two_turns import TwoTurns

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
    return [found for path, body in sent if (found := _as_chat(path, body)) is not None]


def _claude(place: Any) -> Callable[[str, bool], None]:
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


def _codex(place: Any) -> Callable[[str, bool], None]:
    from tests.agents.test_codex import CONFIG

    (place.home / "config.toml").write_text(CONFIG % place.url, "utf-8")

    def run(text: str, goes_on: bool) -> None:
        resume = ["resume", "--last"] if goes_on else []
        place.run("codex", "exec", *resume, "--skip-git-repo-check", text, CODEX_HOME=str(place.home))

    return run


def _opencode(place: Any) -> Callable[[str, bool], None]:
    from tests.agents.test_opencode import settings

    (place.work / "opencode.json").write_text(json.dumps(settings(place.url)), "utf-8")

    def run(text: str, goes_on: bool) -> None:
        on = ["--continue"] if goes_on else []
        place.run("opencode", "run", "--pure", *on, text, OPENCODE_DISABLE_MODELS_FETCH="1")

    return run


_RUNNERS = {"claude": _claude, "codex": _codex, "opencode": _opencode}


def _as_chat(path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """A request in any API as one of chat completions, None for those that write nothing."""
    from specllama.calls.history import function
    from specllama.calls.turns import settled
    from specllama.server.dialects.anthropic.request import MessagesRequest
    from specllama.server.dialects.openai.chat_request import ChatRequest
    from specllama.server.dialects.openai.responses.request import ResponsesRequest
    from specllama.server.dialects.shared.fields import checked

    kinds = {"messages": MessagesRequest, "completions": ChatRequest, "responses": ResponsesRequest}
    kind = kinds.get(path.partition("?")[0].rpartition("/")[2])
    if kind is None:
        return None
    request = checked(kind, body).generation({}, {})
    given = settled(request.messages or (), system=True, systems=False)  # one system message, the first
    messages = [_with_texts(message) for message in given]
    tools = [function(tool) for tool in request.tools.tools] if request.tools is not None else []
    found = {"messages": messages, "chat_template_kwargs": dict(request.variables)}
    return found | ({"tools": tools} if tools else {})


def _with_texts(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its calls as JSON."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, **({"tool_calls": calls} if calls else {})}


def write_model(shape: str, vocab: Path, to: Path) -> None:
    """Write a model of this shape; windows have 512 tokens."""
    from tests.support import tinygguf, tinymtp

    build = {**tinygguf.BUILDERS, "qwen35": tinymtp.qwen35}[shape]
    with tempfile.TemporaryDirectory() as folder:
        more = {"n_swa": 512} if shape == "gemma3" else {}
        small = gguf.GGUFReader(build(Path(folder) / "small.gguf", n_ctx_train=1 << 17, **more))
        words = gguf.GGUFReader(vocab)
        n_vocab = len(words.fields["tokenizer.ggml.tokens"].data)
        writer, rng = gguf.GGUFWriter(to, shape), np.random.default_rng(0)
        found = {f.name: f for f in small.fields.values() if not f.name.startswith("tokenizer.ggml.")}
        found |= {f.name: f for f in words.fields.values() if f.name.startswith("tokenizer.")}
        for field in found.values():
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


def replay(session: list[dict[str, Any]], url: str) -> list[tuple[int, int]]:
    """(tokens of the prompt, tokens evaluated) of each request."""
    found = []
    for body in session:
        asked = {**body, "max_tokens": 8, "temperature": 0, "seed": 1, "ignore_eos": True}
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(asked).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_SECONDS) as reply:
            answer = json.load(reply)
        found.append((answer["usage"]["prompt_tokens"], answer["timings"]["prompt_n"]))
    return found


def main() -> None:
    parser = cli.parser(__doc__)
    ways = parser.add_subparsers(dest="way", required=True)
    modelling = ways.add_parser("model", help="write a model of random weights")
    modelling.add_argument("shape", choices=SHAPES)
    modelling.add_argument("--vocab", type=Path, required=True, help="GGUF file with the vocabulary")
    modelling.add_argument("--to", type=Path, required=True)
    recording = ways.add_parser("record", help="record the requests of an agent's session")
    recording.add_argument("agent", choices=sorted(_RUNNERS))
    recording.add_argument("--to", type=Path, required=True, help="file for the requests, about 1 MB")
    recording.add_argument(
        "--model", default=str(EMBEDDED_TARGET), help="that answers; a small one is faster"
    )
    replaying = ways.add_parser("replay", help="send recorded requests, and count what is evaluated")
    replaying.add_argument("session", type=Path)
    replaying.add_argument("--at", required=True, help="address of a server")
    arguments = parser.parse_args()
    if arguments.way == "model":
        write_model(arguments.shape, cli.gguf_file(arguments.vocab), arguments.to)
        return
    if arguments.way == "record":
        arguments.to.write_text(json.dumps(record(arguments.agent, arguments.model)))
        return
    figures = replay(json.loads(arguments.session.read_text()), arguments.at.rstrip("/"))
    print("request  tokens  evaluated")
    for i, (n_prompt, n_evaluated) in enumerate(figures, 1):
        print(f"{i:7}  {n_prompt:6}  {n_evaluated:9}")
    print(f"    all  {sum(n for n, _ in figures):6}  {sum(n for _, n in figures):9}")


if __name__ == "__main__":
    main()
