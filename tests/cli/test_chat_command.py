"""`specllama chat` as users meet it: line by line from a pipe."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest

from specllama.cli.chat.commands import COMMANDS
from specllama.cli.chat.engine import NAMES
from tests.support import ggufbytes as g
from tests.support import tinygguf
from tests.support.chats import (
    FEW,
    LINE,
    chat,
    messages,
    prompts,
    saved,
)
from tests.support.command import Command, assert_error
from tests.support.image_files import png

BAD = {  # command, and words of its error
    "/sve x": "there is no command /sve; did you mean /save?",
    "/": "there is no command /",
    "/\x1b[31m": "there is no command /␛[31m",
    "/clear all": "/clear takes no argument",
    "/save": "/save needs",
    "/load": "/load needs",
    "/load nowhere.json": "there is no file nowhere.json",
    "/load " + "x" * 5000: "is not a usable path",
    "/load a\0b": "has a NUL; it is left out",
    "/save ~nobody-of-this-name/x": "is not a usable path",
    "/image nowhere.png": "the image 'nowhere.png' cannot be read: No such file",
    f"/image {os.devnull}": "cannot be read",
    "/trim 0": "/trim takes",
    "/trim many": "/trim takes",
    "/draft maybe": "/draft takes",
    "/draft -1": "/draft takes",
    "/draft 1.5": "/draft takes",
    "/draft nan": "/draft takes",
    "/draft 9999999999": "/draft takes",
    "/draft 513": "--draft-max must be a whole number from 0 to 512, not 513",
    "/set temprature 1": "did you mean temperature?",
    "/set temperature hot": "temperature must be a number from 0 to 10000, not 'hot'",
    "/set temperature NaN": "temperature must be a number",
    "/set temperature -1": "temperature must be a number from 0 to 10000",
    "/set top_k 1.5": "top_k must be a whole number",
    "/set top_k " + "9" * 5000: "top_k must be",
    "/set seed 1.5": "seed must be",
    "/set grammar root ::= (": "the grammar cannot be used",
    '/set json_schema {"type": 5}': "the JSON schema cannot be used",
    "/set max_tokens 0": "max_tokens must be",
    "/set stop [1]": "stop must be texts",
    "/set logit_bias 5": "logit_bias must be",
    "/set logit_bias {}{": "logit_bias must map",
    "/set ignore_eos perhaps": "ignore_eos must be true or false",
    "/set logprobs 2": "no log probabilities",
    "/set grammar @nowhere.gbnf": "nowhere.gbnf",
    "/set json_schema [1]": "json_schema must be",
}


@pytest.fixture(scope="module")
def bad(shared: Command) -> dict[str, str]:
    """The error of each of the bad commands, in one chat."""
    asked = [part for line in BAD for part in (line, "/draft")]
    result = chat(shared, *asked, "/set temperature", args=("--no-calibrate",))
    assert (result.code, result.out) == (2, "")
    assert result.lines[-1].split() == ["temperature", "0.8"]
    output = result.err.partition("\n")[2].split("drafts on, length auto\n")[:-1]
    return dict(zip(BAD, output, strict=True))


class TestPipe:
    def test_answers_go_to_stdout_and_all_else_to_stderr(self, shared: Command) -> None:
        result = chat(shared, "What does zip do?", "", "And sort?", "/save pipe.json", "/exit", "not read")
        assert result.code == 0, result.err
        asked, first, again, second = messages(shared, "pipe.json")
        assert (asked, again) == ("What does zip do?", "And sort?")
        assert result.out == f"{first}\n\n{second}\n"
        assert result.lines[0].startswith("speculation on: draft pydoc-draft")
        assert len(prompts(result.err)) == 2
        assert re.search(r"\d+\.\d t/s · .*first token \d+\.\d{3} s", result.err)

    def test_a_second_turn_evaluates_only_what_is_new(self, shared: Command) -> None:
        """Even where the text of the first answer would be cut into other tokens than it was made of."""
        lines, unlikely = (
            ("What does zip do?", "/stats", "And sort?", "/stats"),
            "--temp 1.7 --top-k 0 --top-p 1",
        )
        for args in ((), (*unlikely.split(), "--min-p", "0")):
            result = chat(shared, *lines, args=(*FEW, *args))
            used = [int(n) for n in re.findall(r"context   = (\d+) of 2048", result.err)]
            (_, none), (evaluated, reused) = prompts(result.err)
            assert none == 0
            assert reused == used[0] - 1  # the token written last is in no cache yet
            assert 1 < evaluated < 20
            assert "2 answers" in result.err

    def test_the_first_answer_is_that_of_run(self, shared: Command) -> None:
        few = ("-p", "zip", *FEW[1:])
        plain, brief = shared.generate(*few).out, shared.generate(*few, "-sys", "Be brief.").out
        greedy = shared.generate("-p", "zip", "--temp", "0", "-n", "5").out
        changed = ("/clear", '/system ""', "/set temp 0", "/set max_tokens 5", "zip")
        answers = chat(shared, "zip", "/clear", "/system Be brief.", "zip", *changed).out
        assert answers == f"{plain}\n{brief}\n{greedy}"
        assert chat(shared, "zip", args=(*FEW, "-sys", "Be brief.")).out == brief

    def test_regen_takes_the_next_seed_and_replaces_the_answer(self, shared: Command) -> None:
        seeds = [part for seed in (4, 5) for part in ("/clear", f"/set seed {seed}", "zip")]
        free = ("/set seed none", "/regen", "/stats", "/regen", "/stats", "/set temp 0", "/regen")
        result = chat(
            shared, "zip", "/regen", "/regen", "/save regen.json", *seeds, "/save seeds.json", *free
        )
        assert "seed 5: the one set plus 2" in result.err
        assert messages(shared, "regen.json") == messages(shared, "seeds.json")
        answer = messages(shared, "seeds.json")[1]
        assert result.out.count(answer) == 2
        assert all(evaluated == 1 for evaluated, _ in prompts(result.err)[1:3])
        used = re.findall(r"seed      = (\d+)", result.err)
        assert len(set(used)) == 2
        assert not {"3", "4", "5"} & set(used)
        assert result.err.count("only a changed conversation changes the answer") == 1
        assert chat(shared, "/regen").code == 2

    def test_help_names_every_command(self, shared: Command) -> None:
        result = chat(shared, "/help")
        assert (result.code, result.out) == (0, "")
        assert [line.split()[0] for line in result.lines[1:-2]] == list(COMMANDS)

    @pytest.mark.parametrize("line", BAD)
    def test_bad_commands_are_one_error_each(self, bad: dict[str, str], line: str) -> None:
        assert bad[line].startswith("error: ")
        assert BAD[line] in bad[line]
        assert len(bad[line]) < 400

    def test_set_shows_and_takes_every_parameter(self, shared: Command) -> None:
        values = {
            "temperature": "0.5", "top_k": "7", "top_p": "0.9", "min_p": "0.1", "repeat_penalty": "1.1",
            "repeat_last_n": "-1", "presence_penalty": "0.5", "frequency_penalty": "0.25",
            "logit_bias": "5+1 6-inf", "seed": "11", "max_tokens": "9", "stop": '["a b", "\\n\\n\\n"]',
            "ignore_eos": "true", "json_schema": '{"type": "object"}', "grammar": 'root ::= "a" | "b"',
            "infill_sampling": "true", "min_tokens": "2", "stop_token_ids": "[5, 6]",
            "skip_special_tokens": "false", "reasoning_budget": "100", "reasoning_budget_message": "Enough.",
            "top_n_sigma": "1.5", "typical_p": "0.9", "xtc_probability": "0.5", "xtc_threshold": "0.2",
            "dynatemp_range": "0.5", "dynatemp_exponent": "1.5", "dry_multiplier": "0.8", "dry_base": "1.5",
            "dry_allowed_length": "3", "dry_penalty_last_n": "32", "dry_sequence_breakers": '["x"]',
            "mirostat": "0", "mirostat_eta": "0.2", "mirostat_tau": "4", "adaptive_target": "0.5",
            "adaptive_decay": "0.5", "min_keep": "1", "samplers": '["top_k", "temperature"]',
        }  # fmt: skip
        assert set(values) == set(NAMES)
        result = chat(shared, *(f"/set {k} {v}" for k, v in values.items() if k != "json_schema"), "/set")
        shown = dict(re.findall(r"^(\w+) +(.*?)   \(set\)$", "\n".join(result.lines[-len(values) :]), re.M))
        assert shown.pop("stop") == '"a b" "\\n\\n\\n"'
        assert shown.pop("stop_token_ids") == "5 6"
        assert shown.pop("dry_sequence_breakers") == '"x"'
        assert shown.pop("samplers") == '"top_k" "temperature"'
        lists = ("stop", "stop_token_ids", "dry_sequence_breakers", "samplers")
        assert shown == {k: v for k, v in values.items() if k != "json_schema" and k not in lists}
        unset = chat(shared, "/set top-k 5", "/set top_k default", "/set temp 0", "/set n none", "/set")
        assert "(set)" not in re.findall("(?m)^(?:top_k|max_tokens).*$", unset.err)[-1]
        result = chat(
            shared, '/set json_schema {"enum": ["yes"]}', "zip", "/set json_schema none", "/set stop"
        )
        assert json.loads(result.out) == "yes"
        assert result.lines[-1].split() == ["stop", "none"]

    def test_draft_off_on_and_with_another_length(self, shared: Command) -> None:
        lines = ("zip", "/draft off", "/regen", "/draft 3", "/regen", "/draft", "/draft 3", "/draft auto")
        always = ("--draft-max", "4")  # the default drafts in a short answer or not, as the clock has it
        result = chat(shared, *lines, "/draft none", args=(*FEW, "--temp", "0", "--ignore-eos", *always))
        drafted = ["accept" in line for line in result.lines if LINE[:6] in line]
        assert drafted == [True, False, True]
        assert f"{result.out}\n" == f"{result.out}\n"[: (len(result.out) + 1) // 3] * 3
        assert "drafts on, length up to 3" in result.lines
        assert sum(line.endswith("length up to 3") for line in result.lines) == 2
        assert sum(line.endswith("length auto") for line in result.lines) == 1
        assert [reused > 0 for _, reused in prompts(result.err)] == [False, True, True]  # not loaded again
        off = chat(shared, "/draft on", args=("--drafters", "none"))
        assert (off.code, "no drafter is available" in off.err) == (2, True)

    def test_a_draft_length_that_needs_another_load(self, shared: Command) -> None:
        """A draft model that was not loaded, drafts that are longer than the context was made for."""
        lines = ("zip", "/draft 4", "/regen", "/draft 0", "/draft on", "zip", "/draft 100", "/regen")
        args = (*FEW, "--temp", "0", "--draft-max", "0", "--draft-min", "3")
        result = chat(shared, *lines, "/draft 2", "/draft 0", "/draft", args=args)
        first, again, other, once_more = prompts(result.err)
        assert [n > 0 for _, n in (first, again, other, once_more)] == [False, False, True, False]
        output = [line for line in result.lines if line.startswith(("speculation", "error", "drafts"))]
        assert [line.partition(": draft pydoc")[0] for line in output] == [
            "speculation off: --draft-max 0",
            "speculation on",
            "speculation off: --draft-max 0",
            "error: no drafter is available: --draft-max 0",
            "speculation on",
            "error: --draft-min 3 is more than --draft-max 2",
            "speculation off: --draft-max 0",
            "drafts on, length up to 0",
        ]

    def test_system_is_shown_set_and_taken_out(self, shared: Command) -> None:
        lines = ("/system", "/system Speak Latin.", "zip", "/system", '/system ""', "/save system.json")
        result = chat(shared, *lines)
        assert "no system message" in result.lines
        assert "Speak Latin." in result.lines
        assert result.lines[-2].startswith("system message removed; the conversation stays")
        assert saved(shared, "system.json")["system"] == ""

    def test_clear_and_trim(self, shared: Command) -> None:
        result = chat(
            shared, *"abcd", "/trim 1", "/trim", "/save trim.json", "/clear", "e", "/save clear.json"
        )
        assert "the oldest 1 turn forgotten, 3 turns left" in result.lines
        assert messages(shared, "trim.json")[0] in "cd"
        assert messages(shared, "trim.json")[-2] == "d"
        assert messages(shared, "clear.json")[0] == "e"
        assert chat(shared, "/trim", "/trim 5").lines[-1] == "the oldest 0 turns forgotten, 0 turns left"

    def test_images_for_a_model_that_reads_none(self, shared: Command) -> None:
        (shared.home / "a b.png").write_bytes(png())
        result = chat(shared, "/image", "/image a b.png", "/image 'a b.png'", "/image clear")
        assert result.code == 2
        assert result.err.count("error: pydoc-target.gguf cannot read images") == 1
        assert "mmproj-*.gguf" in result.err
        assert "no image waits" in result.err
        assert "0 images taken back" in result.err
        few = (*FEW, "--image", "a b.png")
        refused = chat(shared, "zip", args=few)
        assert_error(refused, 2, "error: pydoc-target.gguf cannot read images")
        assert "'none.png' cannot be read" in chat(shared, args=(*FEW, "--image", "none.png")).err

    def test_slashes_and_quotation_marks(self, shared: Command) -> None:
        lines = ("//etc is what?", '"""', "/help", "", " two", '"""', '"""one"""', " /x", "/save slash.json")
        chat(shared, *lines, '"""', "open")
        assert messages(shared, "slash.json")[::2] == ["/etc is what?", "/help\n\n two", "one", " /x"]
        result = chat(shared, '"""', "open")
        assert "was not closed" in result.err
        assert len(prompts(result.err)) == 1

    def test_a_loaded_conversation_continues_where_it_was_saved(self, shared: Command) -> None:
        first = chat(
            shared, "/set temperature 0.3", "zip", "/save one.json", "/clear", "/load one.json", "sort"
        )
        assert first.code == 0, first.err
        content = saved(shared, "one.json")
        assert list(content) == ["schema", "system", "messages", "params", "models"]
        assert content["schema"] == "specllama.chat/1"
        assert content["params"] == {"max_tokens": 24, "seed": 3, "temperature": 0.3}
        assert content["models"]["target"]["name"] == "pydoc-target"
        assert (shared.home / "one.json").stat().st_mode & 0o777 == 0o600
        second = chat(shared, "/set", "sort", args=("--no-calibrate", "--load", "one.json"))
        assert re.search(r"temperature +0\.3   \(set\)", second.err)
        assert second.out == first.out.removeprefix(content["messages"][1]["content"] + "\n\n")
        flags = chat(shared, "/set", args=("--load", "one.json", "--temp", "0.7", "-sys", "Hm."))
        assert re.search(r"temperature +0\.7   \(set\)", flags.err)
        again = chat(shared, "/load one.json", "sort", "/save", args=("--no-calibrate",))
        assert again.out == second.out
        assert len(saved(shared, "one.json")["messages"]) == 4

    def test_load_of_a_message_without_an_answer(self, shared: Command) -> None:
        body = {"schema": "specllama.chat/1", "messages": [{"role": "user", "content": "zip"}]}
        body["models"] = {"target": {"name": "another\x1b[31m"}}
        (shared.home / "waits.json").write_text(json.dumps(body))
        result = chat(shared, "/regen", args=(*FEW, "--load", "waits.json"))
        assert result.out == chat(shared, "zip").out
        assert "/regen asks for one" in result.err
        assert "it was held with another␛[31m" in result.err
        result = chat(shared, "sort", args=(*FEW, "--load", "waits.json"))
        assert result.out == chat(shared, "sort").out
        assert "is left out" in result.err

    def test_files_without_a_conversation_are_refused(self, shared: Command) -> None:
        (shared.home / "notes.txt").write_text("mine")
        (shared.home / "folder").mkdir()
        os.mkfifo(shared.home / "fifo")
        lines = [f"/{verb} {name}" for verb in ("save", "load") for name in ("notes.txt", "folder", "fifo")]
        result = chat(shared, "zip", *lines, "/save nowhere/x.json", "/save kept.json")
        assert result.code == 2
        assert sum(line.startswith("error: ") for line in result.lines) == 7
        assert result.err.count("not overwritten") == 3
        assert (shared.home / "notes.txt").read_text() == "mine"
        assert len(messages(shared, "kept.json")) == 2
        assert not [path for path in shared.home.iterdir() if path.suffix == ".tmp"]
        for name, code in (("notes.txt", 2), ("none.json", 3)):
            start = chat(shared, args=("--load", name))
            assert (start.code, len(start.lines)) == (code, 1 + (code == 9))

    def test_context_full_is_said_and_nothing_is_shifted(self, shared: Command) -> None:
        args = ("--no-calibrate", "-c", "256", "-s", "2")
        long = "word " * 60
        lines = (
            long,
            "/set max_tokens -2",
            "more",
            "again",
            "/save full.json",
            "/trim 1",
            "/set n 5",
            "again",
        )
        result = chat(shared, *lines, args=(*args, "-n", "20"))
        full = [i for i, line in enumerate(result.lines) if "context of 256 tokens is full" in line]
        assert len(full) == 1
        assert "/trim" in result.lines[full[0]]
        refused = next(i for i, line in enumerate(result.lines) if line.startswith("error: "))
        assert re.search(
            r"the prompt has 2\d\d tokens, which exceeds the available context size of 256",
            result.lines[refused],
        )
        assert "it was not sent; /trim" in result.lines[refused + 1]
        assert result.code == 2
        assert messages(shared, "full.json")[::2] == [long, "more"]
        assert len(prompts(result.err)) == 3  # after /trim there is room

    def test_length_is_said(self, shared: Command) -> None:
        assert (
            "note: the answer was cut at max_tokens = 2;" in chat(shared, "zip", args=(*FEW, "-n", "2")).err
        )

    def test_input_that_is_no_text(self, shared: Command) -> None:
        result = shared(
            "chat", *FEW, stdin=b"zip\0 zap\n\xff\xfe\n\xed\xa0\x80\n   \n\r\nzip\r\n/save bytes.json"
        )
        assert result.code == 2, result.err
        errors = [line for line in result.lines if line.startswith("error: ")]
        assert errors == [
            "error: line 1 of standard input has a NUL; it is left out",
            "error: line 2 of standard input is not UTF-8; it is left out",
            "error: line 3 of standard input is not UTF-8; it is left out",
        ]
        assert messages(shared, "bytes.json")[::2] == ["zip"]
        long = chat(shared, "w" * 10_000_000, "zip")
        assert "line 1 of standard input is larger than 4 MiB" in long.err
        assert len(long.err) < 1000
        assert long.out == chat(shared, "zip").out

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
    def test_input_of_other_editors(self, shared: Command, encoding: str) -> None:
        text = "Grüße\n/save marked.json\n"
        result = shared("chat", *FEW, stdin=text.encode(encoding))
        assert result.code == 0, result.err
        assert messages(shared, "marked.json")[::2] == ["Grüße"]

    def test_flags_that_cannot_be_used(self, shared: Command) -> None:
        for flags, code in (("--logprobs 2", 2), ("-p zip", 2), ("--raw", 2), ("--reasoning maybe", 2)):
            result = chat(shared, "zip", args=tuple(flags.split()))
            assert_error(result, code)
        assert "note: --show-draft needs a terminal" in chat(shared, args=("--show-draft",)).err

    def test_models_that_cannot_chat(self, shared: Command) -> None:
        content = g.llama(tokens=tinygguf.vocabulary(280)[0], metadata={"tokenizer.ggml.merges": ["a b"]})
        (shared.home / "plain.gguf").write_bytes(content.build())
        result = chat(shared, "zip", args=("-m", "plain.gguf"))
        assert_error(result, 2, "the model has no chat template", "run --raw")
        result = chat(shared, "zip", args=("--chat-template", "{{ raise_exception('no way') }}"))
        assert (result.code, result.out) == (2, "")
        assert result.err.count("no way") == 1
        alternating = "{% if messages|length > 1 %}{{ raise_exception('only one') }}{% endif %}{{ messages }}"
        result = chat(shared, "zip", "zap", "/save alone.json", args=(*FEW, "--chat-template", alternating))
        assert "only one" in result.err
        assert len(messages(shared, "alone.json")) == 2

    def test_streams_that_are_closed(self, shared: Command) -> None:
        """An answer that could not be written is not a success."""
        for redirection, code in ((">&-", 8), ("<&- >&- 2>&-", 0), ("| true", 141), ("2>&-", 0)):
            line = f"{shlex.quote(sys.executable)} -m specllama chat --no-calibrate -n 5 {redirection}"
            done = subprocess.run(
                ["bash", "-c", f"printf 'zip\\nzip\\n' | {line}; exit ${{PIPESTATUS[1]}}"],
                capture_output=True, env=shared.env, cwd=shared.home, timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == code, done.stderr
            assert (b"standard output is closed" in done.stderr) == (redirection == ">&-")

    def test_measured_once_at_the_end(self, command: Command) -> None:
        args = FEW[1:]
        assert chat(command, "zip", args=args).code == 0
        (file,) = (command.cache / "calibration").glob("*.json")
        assert json.loads(file.read_text())["t1"] > 0
        later = chat(command, "zip", args=(*args, "--ignore-eos", "--draft-max", "4"))
        assert later.code == 0
        assert "the speed of plain decoding is unknown" not in later.err
        assert not (command.cache / "chat_history").exists()


TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}},
    },
    {"type": "function", "function": {"name": "now"}},
]


def call_of(name: str, id_: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": {}}}


def test_results_of_calls_are_typed(shared: Command) -> None:
    """The model of the tests makes no calls of its own accord: a saved conversation ends with two."""
    (shared.home / "tools.json").write_text(json.dumps(TOOLS))
    turns = [
        {"role": "user", "content": "What is the time?"},
        {"role": "assistant", "content": "", "tool_calls": [call_of("now", "a"), call_of("add", "b")]},
    ]
    (shared.home / "calls.json").write_text(json.dumps({"schema": "specllama.chat/1", "messages": turns}))
    args = (*FEW, "--tools", "tools.json", "--load", "calls.json")
    result = chat(shared, "12:30", "5", "/save after.json", args=args)
    assert result.code == 0
    asked = [line for line in result.err.splitlines() if line.startswith("type the result of ")]
    assert asked[:2] == ["type the result of now", "type the result of add"]
    messages = saved(shared, "after.json")["messages"]
    assert messages[:2] == turns
    assert [(m["role"], m["tool_call_id"], m["name"], m["content"]) for m in messages[2:4]] == [
        ("tool", "a", "now", "12:30"),
        ("tool", "b", "add", "5"),
    ]
    assert messages[4]["role"] == "assistant"
    again = chat(shared, "/save again.json", args=(*FEW, "--load", "after.json"))
    assert again.code == 0
    assert saved(shared, "again.json")["messages"] == messages


def test_what_is_not_enforced_of_a_schema_is_said_once(command: Command) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tool = {"type": "function", "function": {"name": "sort", "parameters": parameters}}
    (command.home / "tools.json").write_text(json.dumps([tool]))
    result = chat(command, "Hello", "/regen", args=(*FEW, "--tools", "tools.json"))
    assert result.code == 0
    (line,) = [line for line in result.err.splitlines() if "the tool sort" in line]
    assert line.startswith("note: the arguments of the tool sort are not held to its whole schema: ")


@pytest.mark.parametrize(
    ("content", "code", "needle"),
    [
        ("[", 2, "tools.json is no JSON"),
        ("{}", 2, "tools.json has no list of tools"),
        ('[{"name": "a"}]', 2, "tools[0] must be"),
        ('[{"type": "function", "function": {"name": ""}}]', 2, "tools[0].function.name"),
        (None, 3, "there is no file tools.json"),
    ],
)
def test_files_of_tools_are_checked(command: Command, content: str | None, code: int, needle: str) -> None:
    if content is not None:
        (command.home / "tools.json").write_text(content)
    result = chat(command, "x", args=("--tools", "tools.json"))
    assert result.code == code
    assert needle in result.err


def test_a_cut_answer_that_nothing_can_read_is_an_error(shared: Command) -> None:
    schema = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'
    result = chat(shared, "zip", "sort", args=(*FEW[:3], "-n", "3", "-j", schema))
    assert (result.code, result.out.count('{"')) == (8, 2), result.err
    assert result.err.count("error: the answer was cut at -n 3, before its schema or grammar") == 2
