"""What the turns of a conversation evaluate, over HTTP in every API, with templates of real models, on models
of every kind of memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from specllama.core.prefix.stored import GAP
from tests.engine.test_prefix_conversations import STRIPPING
from tests.support import tinygguf, tinymtp
from tests.support.conversations import Answer, Call, Result, Say, Turn
from tests.support.serving import QUESTION, Server
from tests.support.templates import SOURCES
from tests.support.turns import PATHS, ask, n_beyond, n_new, prompt_ids, text_ids

BUILDERS = {
    "qwen35": tinymtp.qwen35,
    "lfm2": tinygguf.lfm2,
    "jamba": tinygguf.jamba,
    "mamba": tinygguf.mamba,
    "gemma3": tinygguf.gemma3,
    "llama": tinygguf.llama,
}
OWN = {"stripping": STRIPPING, "chatml": tinygguf.CHATML}
CASES = [
    ("qwen35", "Qwen3.5-4B"),
    ("lfm2", "LFM2-8B-A1B"),
    ("jamba", "NVIDIA-Nemotron-Nano-v2"),
    ("mamba", "stripping"),
    ("gemma3", "google-gemma-4-31B-it"),
    ("llama", "chatml"),
]
CUTS_ANYWHERE = ("llama",)
SYSTEM = Say("system", "You answer questions about a machine that sorts letters. " * 8)
FIRST = Say("user", "What does it do with letters that have no stamp?")
SAID = "It sorts them by their stamps, and keeps those without one in a box."


def _marked(kind: str, template: str) -> object:
    absent = template not in OWN and template not in SOURCES
    skip = pytest.mark.skipif(absent, reason="templates: scripts/fetch_templates.py")
    return pytest.param((kind, template), id=kind, marks=skip)


@pytest.fixture(scope="module", params=[_marked(*case) for case in CASES])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    kind, template = request.param
    home = tmp_path_factory.mktemp(kind)
    model = BUILDERS[kind](home / f"{kind}.gguf", n_ctx_train=8192)
    (home / "template.jinja").write_text((OWN | SOURCES)[template], "utf-8")
    flags = ("-m", str(model), "--chat-template-file", str(home / "template.jinja"), "-c", "8192", "-np", "2")
    with Server(home, *flags, "-md", "none", "--cache-disk", "0", "-b", "256", "-ub", "64") as one:
        yield one


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("reasons", [False, True], ids=["plain", "reasoning"])
def test_every_turn_evaluates_what_is_new(served: Server, api: str, reasons: bool) -> None:
    """Reasoning of earlier answers is sent again, and left out by templates."""
    turns: list[Turn] = [Say("system", f"{api} {reasons}. {SYSTEM.content}"), FIRST]
    before: list[Turn] = []
    for i in range(4):
        reply = ask(served, api, turns)
        if i:
            assert reply.n_evaluated <= n_new(served, before, turns) + GAP
            assert reply.n_cached > 200
        before = list(turns)
        thought = (reply.answer.thought or reply.answer.content) if reasons else ""
        turns += [Answer(f"{i}: {SAID}", thought), Say("user", f"And number {i}, what about that?")]


@pytest.mark.parametrize("api", PATHS)
def test_rerendered_calls_reuse_the_cache(served: Server, api: str) -> None:
    turns: list[Turn] = [Say("system", f"{api}. {SYSTEM.content}"), FIRST]
    before: list[Turn] = []
    for i in range(4):
        reply = ask(served, api, turns, tools=True)
        if i:
            assert reply.n_evaluated <= n_new(served, before, turns, tools=True) + GAP
            assert reply.n_cached > 200
        before = list(turns)
        call = Call(f"call_{i}", arguments=f'{{"city": "Paris {i}"}}')
        turns += [Answer("", "I look.", [call]), Result(f"call_{i}", f"RESULT {i} " * 10)]


@pytest.mark.parametrize("api", PATHS)
def test_an_edit_and_a_second_agent_evaluate_their_own_part(served: Server, api: str) -> None:
    """And the conversation that was edited is still there."""
    system = Say("system", f"{api}, edited. {SYSTEM.content}")
    turns: list[Turn] = [system]
    for i in range(4):
        turns += [Say("user", f"Question {i}: " + "what then? " * 12), Answer(f"{i}: {SAID}")]
    turns.pop()
    first = ask(served, api, turns, tools=True)
    edited = [*turns[:-1], Say("user", "Something else: " + "who knows? " * 12)]
    reply = ask(served, api, edited, tools=True)
    assert reply.n_evaluated <= n_new(served, turns, edited, tools=True) + GAP
    second = [system, Say("user", "I am another agent. " * 5)]
    reply = ask(served, api, second, tools=True)
    assert reply.n_evaluated <= n_new(served, turns, second, tools=True) + GAP
    again = ask(served, api, turns, tools=True)
    assert again.n_evaluated <= 2 * GAP
    assert again.answer.content == first.answer.content


@pytest.mark.parametrize("api", PATHS)
def test_a_returned_answer_is_not_evaluated_again(served: Server, api: str) -> None:
    """As the model wrote it, where the template writes it so too."""
    turns: list[Turn] = [Say("system", f"{api}, sent back. {SYSTEM.content}"), FIRST]
    shown = served.post("/apply-template", {"messages": QUESTION, "enable_thinking": False}).json["prompt"]
    written = SAID * 4 if not shown.endswith("<think>\n") else f"Hm.\n</think>\n\n{SAID * 4}"
    form = f"root ::= {json.dumps(written)}"
    limit = {"responses": "max_output_tokens", "ollama": "options"}.get(api, "max_tokens")
    fields = {limit: {"num_predict": 400} if api == "ollama" else 400}
    reply = ask(served, api, turns, grammar=form, enable_thinking=False, **fields)
    assert reply.answer.content == SAID * 4
    longer = [*turns, reply.answer, Say("user", "And then?")]
    warm = ask(served, api, longer, enable_thinking=False)
    cache = prompt_ids(served, turns, enable_thinking=False) + text_ids(served, written)
    prompt = prompt_ids(served, longer, enable_thinking=False)
    assert warm.n_evaluated <= n_beyond(cache, prompt) + GAP


@pytest.mark.parametrize("path", ["/v1/completions", "/completion", "/api/generate"])
def test_prompts_without_structure(served: Server, path: str) -> None:
    """A text that goes on evaluates what is new; of an edit as much as it is from the end, a few times."""
    field = {"/api/generate": "num_predict", "/completion": "n_predict"}.get(path, "max_tokens")
    more = {"options": {field: 8}, "raw": True, "stream": False} if "api" in path else {field: 8}

    def asked(prompt: str) -> tuple[int, int]:
        reply = served.post(path, {"prompt": prompt, "temperature": 0, "seed": 3, "ignore_eos": True, **more})
        assert reply.status == 200, reply.body
        return reply.json["timings"]["prompt_n"], reply.json["timings"]["cache_n"]

    text = f"{path}. {SYSTEM.content}" * 2
    n_prompt = sum(asked(text))
    n_evaluated, n_cached = asked(text + "And on.")
    assert n_evaluated <= n_prompt - n_cached + 16
    assert n_cached >= n_prompt - 2 * GAP
    n_evaluated, n_cached = asked(text[:-40] + "It ends in another way.")
    assert n_cached >= n_prompt - 4 * GAP
