"""Conversations that `specllama chat` saves as it goes, goes on with, lists, and makes room in."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from specllama.cli.chat.library import ChatLibrary, held
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from tests.support.chat_pty import CTRL_C, CTRL_D, Terminal
from tests.support.chats import FEW, LINE, chat, pty
from tests.support.command import Command, assert_error
from tests.support.foreign import permuted

UNLIKELY = ("--temp", "1.7", "--top-k", "0", "--top-p", "1", "--min-p", "0")


def files(command: Command) -> list[Path]:
    return sorted((command.home / "data" / "chats").glob("*.json"))


def content(path: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(path.read_text())
    return parsed


def questions(path: Path) -> list[str]:
    return [m["content"] for m in content(path)["messages"] if m["role"] == "user"]


@pytest.mark.parametrize("more", [(), ("--cache-disk", "0"), UNLIKELY], ids=["", "no cache", "unlikely"])
def test_a_continued_chat_says_what_one_that_never_ended_says(
    command: Command, more: tuple[str, ...]
) -> None:
    """Also where the text of an answer would be cut into other tokens than it was made of."""
    args = (*FEW, *more)
    whole = chat(command, "What does zip do?", "And sort?", "/regen", args=args).out
    first = chat(command, "What does zip do?", args=(*args, "--name", "one")).out
    second = chat(command, "And sort?", "/regen", args=("--no-calibrate", "--continue", "one")).out
    assert f"{first}\n{second}" == whole
    again = chat(command, "/regen", "/stats", args=("--no-calibrate", "--continue"))
    assert re.search(r"seed      = 5\b", again.err), "the seed that is set, and two regenerations"


def test_what_is_saved_and_listed(command: Command) -> None:
    name = 'Reißverschluss/"zip" 拉链'
    chat(command, "What does zip do?", args=(*FEW, "-sys", "Be brief.", "--name", f"  {name}\n"))
    (path,) = files(command)
    written = content(path)
    assert (written["name"], written["system"]) == (name, "Be brief.")
    assert written["params"] == {"max_tokens": 24, "seed": 3}
    assert written["options"] == {"model": "pydoc"}
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    result = chat(command, "And sort?", "/name", args=("--no-calibrate", "--continue", name.upper()[:7]))
    assert f"going on with {name}: 1 turn" in result.lines
    assert questions(path) == ["What does zip do?", "And sort?"]
    listed = command("chats").out
    assert name in listed
    assert "1 conversation" in listed
    (one,) = command("chats", "ls", "--json").json["chats"]
    assert (one["name"], one["turns"], one["model"], one["problem"]) == (name, 2, "pydoc-target", None)
    refused = chat(command, "x", args=("--name", name))
    assert_error(refused, 2, "there is a conversation", "--continue")
    removed = command("chats", "rm", name)
    assert removed.out == f"removed {name}, 2 turns\n"
    assert files(command) == []
    assert command("chats").out.startswith("no conversations are saved in")
    assert "no conversations" in command("chats", "clear").out


def test_what_a_pipe_says_is_not_saved_without_a_name(command: Command) -> None:
    named = chat(command, "zip", "/name one")
    assert named.code == 0
    assert "not saved: /save FILE writes it; chat --name NAME saves one as it goes\n" in named.err
    assert "/save FILE writes it\n" in chat(command, "/name one", args=("--no-save",)).err
    unsaved = chat(command, "zip", args=(*FEW, "--no-save", "--name", "x"))
    assert unsaved.code == 0
    assert "note: --name has no effect" in unsaved.err
    assert not (command.home / "data").exists()
    assert_error(chat(command, "x", args=("--continue",)), 3, "there is no saved conversation")


def test_what_a_pipe_says_is_saved_where_it_is_interrupted(command: Command) -> None:
    chat_ = command.start(
        "chat", "--no-calibrate", "-n", "-2", "-c", "8192", stdin=subprocess.PIPE, fork=True
    )
    assert chat_.stdin is not None
    assert chat_.stdout is not None
    chat_.stdin.write(b"list all\n")
    chat_.stdin.flush()
    assert chat_.stdout.read(1)
    chat_.send_signal(signal.SIGINT)
    _, err = chat_.communicate(timeout=20)
    assert chat_.returncode == 130
    assert "specllama chat --continue 'list all' goes on with it" in err.decode()
    assert [one["name"] for one in command("chats", "--json").json["chats"]] == ["list all"]
    assert "removed list all, 1 turn" in command("chats", "clear").out


def test_names_that_are_not_there_or_not_clear(command: Command) -> None:
    for name in ("Monads explained", "Monads again"):
        chat(command, "zip", args=(*FEW, "--name", name))
    assert_error(chat(command, args=("--continue", "monads")), 3, "more than one conversation begins")
    assert_error(chat(command, args=("--continue", "Monads explaned")), 3, "did you mean Monads explained?")
    assert_error(command("chats", "rm", "Monads again", "lists"), 3, "there is no conversation 'lists'")
    assert_error(command("chats", "rm", "Monads a"), 3, "'Monads again' begins so", "whole name or its id")
    id_ = files(command)[0].stem
    assert_error(command("chats", "rm", id_[:5]), 3, "begins so")
    assert len(files(command)) == 2, "nothing is removed where a name is wrong"
    for flags in (("--name", "a"), ("--load", "a.json")):
        assert_error(chat(command, args=("--continue", *flags)), 2, "cannot be used with --continue")
    assert_error(chat(command, args=("--name", "\x1b \n")), 2, "needs a letter")
    result = chat(command, "/name  Lists ", "/name", "/name monads AGAIN", args=("--continue", "monads e"))
    assert result.lines.count("Lists") == 2
    assert "there is a conversation 'monads AGAIN' already" in result.err
    assert {content(path)["name"] for path in files(command)} == {"Lists", "Monads again"}
    result = chat(command, "/continue", "/continue lists", "sort", args=("--continue", "monads again"))
    assert "Lists  (1 turn)" in result.lines
    by_name = {content(path)["name"]: questions(path) for path in files(command)}
    assert by_name == {"Lists": ["zip", "sort"], "Monads again": ["zip"]}


def test_the_model_is_kept_and_another_one_is_said(command: Command) -> None:
    target = Path(command.env["PYTHONPATH"]) / "specllama/data/pydoc-target.gguf"
    (command.home / "mine.gguf").symlink_to(target)
    args = (*FEW, "-m", "mine.gguf", "-c", "512", "--name", "mine")
    assert chat(command, "zip", args=args).code == 0
    (path,) = files(command)
    assert content(path)["options"] == {"model": str(command.home / "mine.gguf"), "n_ctx": 512}
    result = chat(command, "sort", "/stats", args=("--continue", "mine", "--no-calibrate"))
    assert "it was held with" not in result.err
    assert re.search(r"context   = \d+ of 512", result.err)
    (command.home / "mine.gguf").unlink()
    gone = chat(command, "x", args=("--continue", "mine"))
    assert_error(gone, 3, "the model of the conversation 'mine' is gone", "--continue mine -m MODEL")
    result = chat(command, "x", args=("--continue", "mine", "-m", "pydoc-draft", "--no-calibrate"))
    if result.code:  # no model of this name
        result = chat(
            command,
            "x",
            args=("--continue", "mine", "-m", str(target.with_name("pydoc-draft.gguf")), "--no-calibrate"),
        )
    assert result.code == 0, result.err
    assert "it was held with" in result.err
    assert len(questions(path)) == 3


def test_a_draft_whose_tokens_are_translated_goes_on(command: Command) -> None:
    draft = permuted(Path(EMBEDDED_DRAFT), command.home / "other.gguf", every=4, drop=True)
    pair = ("-m", str(EMBEDDED_TARGET), "-md", str(draft), "--draft-vocab", "auto")
    assert chat(command, "zip", args=(*FEW, *pair, "--name", "v")).code == 0
    (path,) = files(command)
    assert content(path)["options"]["draft_vocab"] == "auto"
    result = chat(command, "sort", args=("--no-calibrate", "--continue", "v"))
    assert result.code == 0, result.err
    strict = chat(command, "sort", args=("--no-calibrate", "--continue", "v", "--draft-vocab", "strict"))
    assert_error(strict, 7, "do not fit together")


def test_the_command_line_goes_before_what_a_conversation_was_saved_with(command: Command) -> None:
    chat(command, "zip", args=(*FEW, "-sys", "Be brief.", "--name", "one"))
    few = ("--no-calibrate", "-n", "6")
    for back in ("/continue one", f"/load {files(command)[0]}"):
        said = chat(command, back, "/set max_tokens", "/set seed", "/system", args=few).err
        assert re.search(r"max_tokens +6 +\(set\)", said)
        assert re.search(r"seed +3 +\(set\)", said)
        assert "Be brief." in said
        said = chat(command, back, "/system", args=(*few, "-sys", "Be long.")).err
        assert said.splitlines()[-1].endswith("Be long.")


def test_what_a_conversation_was_saved_with_goes_before_files_and_the_environment(command: Command) -> None:
    (command.home / "config.toml").write_text("max-tokens = 5\nsampling-seq = 'kt'\nmin-p = 0.2\n")
    elsewhere = {"SPECLLAMA_SEED": "9", "SPECLLAMA_N_CTX": "1024", "SPECLLAMA_CONFIG": "config.toml"}
    args = (*FEW, "-c", "512", "--sampling-seq", "tk", "--name", "one")
    chat(command, "zip", args=args)
    (path,) = files(command)
    saved = content(path)
    for back in (("--continue", "one", "--no-calibrate"), (*FEW[:1], "--load", str(path))):
        shown = chat(command, "/set", "/stats", "sort", "/stats", args=back, env=elsewhere).err
        assert re.search(r"max_tokens +24 +\(set\)", shown)
        assert re.search(r"seed +3 +\(set\)", shown)
        assert re.search(r"min_p +0.2 +\(set\)", shown), "what the conversation says nothing of"
    assert "of 512 tokens" in chat(command, "map", "/stats", args=("--continue",), env=elsewhere).err
    assert content(path)["params"] == {**saved["params"], "min_p": 0.2}
    args = ("--continue", "one", "-s", "4", "--sampling-seq", "kt")
    assert re.search(r"seed +4 +\(set\)", chat(command, "/set", "sort", args=args, env=elsewhere).err)
    flags = {"seed": 4, "samplers": ["top_k", "temperature"]}
    assert content(path)["params"] == {**saved["params"], "min_p": 0.2, **flags}


def test_damaged_and_newer_files(command: Command) -> None:
    chat(command, "zip", args=(*FEW, "--name", "good"))
    (good,) = files(command)
    os.utime(good, (1e9, 1e9))
    text = good.read_text()
    bad = {
        "0" * 16: text[: len(text) // 2],
        "1" * 16: "",
        "2" * 16: text.replace("specllama.chat/1", "specllama.chat/2").replace('"good"', '"strange"'),
        "3" * 16: json.dumps({**content(good), "tokens": {"ids": "x"}}),
        "4" * 16: json.dumps({**content(good), "options": {"n_ctx": [1]}}),
    }
    for name, part in bad.items():
        good.with_name(f"{name}.json").write_text(part)
    good.with_name("notes.txt").write_text("mine")
    good.with_name(f".{'5' * 16}.json.{'6' * 16}.tmp").write_text(text)
    listed = command("chats")
    assert listed.code == 0
    assert len(listed.lines) == len(bad)
    for name, why in {
        "good": "its end is missing", "1" * 16: "it is empty", "strange": "a newer specllama wrote it",
    }.items():  # fmt: skip
        assert re.search(f"warning: '{name}' cannot be read: .*{why}", listed.err)
    assert "Unterminated" not in listed.err
    assert "strange" in listed.out
    assert_error(chat(command, args=("--continue", "STRANGE")), 6, "'strange' cannot be read: a newer")
    result = chat(command, "sort", args=("--continue", "--no-calibrate"))
    assert result.code == 0
    assert result.err.count("a newer conversation cannot be read") == 3
    assert questions(good) == ["zip", "sort"]
    assert_error(chat(command, args=("--continue", "2222")), 6, "a newer specllama wrote it")
    strange = {**content(good), "name": "strange", "options": {"n_ctx": "many"}}
    strange["tokens"]["ids"] = "1 999999999"
    good.write_text(json.dumps(strange))
    whole = "n_ctx must be a whole number, not 'many'", f"specllama chats rm {good.stem} removes it"
    assert_error(chat(command, args=("--continue", "strange")), 6, *whole)
    assert whole[0] in command("chats").err
    good.write_text(json.dumps({**strange, "options": {"n_ctx": -5}}))
    assert_error(chat(command, args=("--continue", "strange")), 6, "n_ctx must be a whole number from 0")
    good.write_text(json.dumps({**strange, "options": {}}))
    assert chat(command, "more", args=("--continue", "strange", "--no-calibrate")).code == 0
    assert len(command("chats", "rm", *bad, "--json").json["removed"]) == len(bad)
    chat(command, "zip", args=(*FEW, "--name", "new"))
    assert not list(good.parent.glob(".*.tmp")), "a half-written file of a killed chat goes"
    assert good.with_name("notes.txt").exists()


def test_a_conversation_that_is_edited_is_read_as_it_stands(command: Command) -> None:
    chat(command, "What does zip do?", args=(*FEW, "--name", "one"))
    (path,) = files(command)
    path.write_text(path.read_text().replace("What does zip do?", "What does map do?"))
    edited = chat(command, "/save copy.json", "And sort?", args=("--no-calibrate", "--continue")).out
    loaded = chat(command, "And sort?", args=("--no-calibrate", "--load", "copy.json")).out
    assert edited == loaded


def test_a_directory_that_cannot_be_used(command: Command) -> None:
    (command.home / "data").write_text("a file where the directory should be")
    result = chat(command, "zip", "sort", args=(*FEW, "--name", "x"))
    assert result.code == 8
    assert result.err.count("the conversation is not saved: ") == 1
    assert result.out.startswith(chat(command, "zip").out + "\n"), "an empty line between answers"
    nowhere = {"HOME": os.devnull, "SPECLLAMA_DATA": None, "XDG_DATA_HOME": None}
    result = chat(command, "zip", args=(*FEW, "--name", "x"), env=nowhere)
    assert (result.code, result.err.count("the conversation is not saved: ")) == (8, 1)
    for args in (("chats",), ("chats", "clear"), ("chats", "rm", "x"), ("chat", "--continue")):
        assert_error(command(*args), 8, "cannot be read: Not a directory")
        assert_error(command(*args, env=nowhere), 8, "cannot be read: Not a directory")
    (command.home / "data").unlink()
    chat(command, "zip", args=(*FEW, "--name", "x"))
    (path,) = files(command)
    path.parent.chmod(0o755)
    chat(command, "sort", args=(*FEW, "--name", "y"))
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_conversation_that_another_chat_has(command: Command) -> None:
    chat(command, "zip", args=(*FEW, "--name", "x"))
    (path,) = files(command)
    lock = held(path)
    for args in (("chat", "--continue"), ("chats", "rm", "x"), ("chats", "clear")):
        assert_error(command(*args), 8, "the conversation x is open in another chat")
    assert chat(command, "sort", args=("--continue", "--no-save", "--no-calibrate")).code == 0
    lock.release()
    assert questions(path) == ["zip"], "--no-save only reads"
    result = chat(command, "/continue x", "/clear", "map", "/name", args=(*FEW, "--name", "z"))
    assert result.code == 0
    assert sorted(map(questions, files(command))) == [["map"], ["zip"]]


FULL = ("--no-calibrate", "-c", "256", "-s", "2", "-n", "20")
LONG, SHORT = "word " * 50, "word " * 30  # 105 and 65 tokens


def test_the_oldest_turns_go_where_a_script_says_so(command: Command) -> None:
    lines = ("one " + LONG, "two " + LONG, "three " + LONG, "four " + LONG, "five")
    args = (*FULL, "-sys", "Be brief.", "--name", "x")
    result = chat(command, *lines, args=(*args, "--drop-oldest"))
    assert result.code == 0, result.err
    said = re.findall(
        r"256 tokens is full: dropping the oldest (\d+) turns? frees (\d+) tokens; the sys", result.err
    )
    assert said
    (path,) = files(command)
    written = content(path)
    asked = [m["content"].split()[0] for m in written["dropped"] + written["messages"] if m["role"] == "user"]
    assert asked == ["one", "two", "three", "four", "five"], "what is dropped stays in the file"
    n = sum(int(n) for n, _ in said)
    assert len([m for m in written["dropped"] if m["role"] == "user"]) == n
    assert written["system"] == "Be brief."
    evaluated = [(int(a), int(b)) for a, b in re.findall(LINE, result.err)]
    assert all(reused > 0 for _, reused in evaluated[1:]), "the system message is not read again"
    refused = chat(command, *lines, args=args[:-2])
    assert refused.code == 2
    assert "--drop-oldest drops the oldest turns" in refused.err
    alone = chat(command, "word " * 400, args=(*FULL, "--drop-oldest"))
    assert (alone.code, alone.out) == (2, "")
    huge = chat(command, "zip", args=(*FULL, "--drop-oldest", "-sys", "word " * 400))
    assert (huge.code, huge.out) == (2, "")
    again = chat(command, "six", args=("--continue", "--no-calibrate", "--drop-oldest"))
    assert again.code == 0
    assert content(path)["dropped"][0]["content"].startswith("one")


def test_an_answer_goes_on_after_the_oldest_turns_went(command: Command) -> None:
    """In the midst of an answer, which then is one text, also on stdout."""
    args = ("--no-calibrate", "-c", "256", "-s", "2", "-n", "20", "--ignore-eos", "--name", "x")
    lines = ("one " + LONG, "two " + LONG, "/set n 150", "three")
    result = chat(command, *lines, args=(*args, "--drop-oldest"))
    assert result.code == 0, result.err
    assert "256 tokens is full: dropping the oldest" in result.err
    (path,) = files(command)
    answers = [
        m["content"] for m in content(path)["dropped"] + content(path)["messages"] if m["role"] != "user"
    ]
    assert result.out == "\n".join(f"{answer}\n" for answer in answers)
    assert content(path)["messages"][-1]["finish_reason"] == "length"
    assert "the answer was cut at max_tokens" in result.err
    n = re.findall(r"the context of 256 tokens is full, the answer was cut", result.err)
    assert not n
    goes_on = chat(command, "/set n 5", "more", args=("--continue", "--no-calibrate"))
    assert goes_on.code == 0
    cut = chat(command, *lines, args=args[:-2])
    assert "the answer was cut; /trim" in cut.err
    assert "--drop-oldest" in cut.err


@pty
class TestTerminal:
    def test_ask_stop_ask_quit_continue(self, command: Command) -> None:
        with Terminal(command, "--no-calibrate", "-n", "-2", "-c", "8192", "-s", "3") as user:
            user.prompt()
            user.enter("list all methods, please.")
            user.expect(r"\n(.{12})")
            user.type(CTRL_C)
            user.expect("stopped; what was written is kept")
            user.prompt()
            user.enter("/set n 5")
            user.prompt()
            user.ask("and sort?")
            user.prompt()
            user.type(CTRL_D)
            user.expect("saved as list all methods, please; specllama chat --continue goes on with it")
            assert user.wait() == 0
            assert "not saved" not in user.text()
        (path,) = files(command)
        first = content(path)["messages"]
        assert first[1]["finish_reason"] == "cancel"
        with Terminal(command, "--continue", "--no-calibrate") as user:
            user.expect("going on with list all methods, please: 2 turns")
            user.expect("the last of them:")
            user.expect("> and sort[?]")
            user.prompt()
            user.ask("and zip?")
            user.prompt()
            user.enter("/exit")
            assert user.wait() == 0
        assert content(path)["messages"][:4] == first
        assert len(content(path)["messages"]) == 6

    def test_kill_9_in_the_midst_of_an_answer_loses_that_answer_alone(self, command: Command) -> None:
        with Terminal(command, "--no-calibrate", "-n", "8", "-c", "8192", "-s", "3") as user:
            user.prompt()
            user.ask("What does zip do?")
            user.prompt()
            user.enter("/set n -2")
            user.prompt()
            user.enter("list all")
            user.expect(r"\n(.{12})")
            user.process.send_signal(signal.SIGKILL)
            user.process.wait(20)
        (path,) = files(command)
        assert questions(path) == ["What does zip do?", "list all"]
        result = chat(command, "/set n 5", "/regen", args=("--continue", "--no-calibrate"))
        assert result.code == 0
        assert "the last message has no answer; /regen asks for one" in result.err
        assert [m["role"] for m in content(path)["messages"]] == ["user", "assistant"] * 2

    def test_a_hang_up_saves_and_says_so_in_one_line(self, command: Command) -> None:
        with Terminal(command, *FEW) as user:
            user.prompt()
            user.ask("zip")
            user.prompt()
            user.process.send_signal(signal.SIGHUP)
            assert user.wait() == 129
            assert user.text().count("saved") == 1
            assert "the conversation is saved: specllama chat --continue zip goes on with it" in user.text()
        (path,) = files(command)
        assert questions(path) == ["zip"]

    def test_full_context_refuse_then_accept(self, command: Command) -> None:
        with Terminal(command, *FULL) as user:
            for word in ("one", "two"):
                user.prompt()
                user.ask(f"{word} {SHORT}")
            for answer in ("", "no", CTRL_C):
                user.prompt()
                user.enter(f"three {SHORT}{SHORT}")
                user.expect(r"dropping the oldest (\d) turns? frees \d+ tokens")
                user.expect("type y to drop them")
                user.prompt()
                user.type(answer if answer == CTRL_C else f"{answer}\r")
                user.expect("note: no turns were dropped; /trim")
                user.expect("the message is taken back")
            user.prompt()
            assert "error:" not in user.text()
            user.enter(f"three {SHORT}{SHORT}")
            user.expect("type y to drop them")
            user.prompt()
            user.enter("y")
            user.expect(LINE)
            user.prompt()
            user.type(CTRL_D)
            assert user.wait() == 0
        (path,) = files(command)
        chat = content(path)
        asked = [m["content"].split()[0] for m in chat["dropped"] + chat["messages"] if m["role"] == "user"]
        assert asked == ["one", "two", "three"]

    def test_no_save_asks_nothing_and_leaves_nothing(self, command: Command) -> None:
        with Terminal(command, *FEW, "--no-save", "--no-history", "--cache-disk", "0") as user:
            user.prompt()
            user.ask("zip")
            user.prompt()
            user.enter("/name")
            user.expect("the conversation is not saved")
            user.prompt()
            user.type(CTRL_D)
            assert user.wait() == 0
            assert "type the name of a file" not in user.text()
        assert not (command.home / "data").exists()
        assert not (command.cache / "chat_history").exists()


def test_a_first_message_that_does_not_fit_leaves_no_file(command: Command) -> None:
    assert chat(command, "word " * 400, args=(*FULL, "--name", "x")).code == 2
    assert files(command) == []
    assert list(ChatLibrary(command.home / "data" / "chats").chats()) == []
