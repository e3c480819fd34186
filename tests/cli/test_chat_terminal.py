"""`specllama chat` as users meet it at a pseudo-terminal."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.support.chat_pty import ALT_ENTER, CTRL_C, CTRL_D, TAB, UP, Terminal
from tests.support.chats import (
    DIM,
    FEW,
    GOES_ON,
    LINE,
    chat,
    in_library,
    messages,
    no_library,
    prompts,
    pty,
)
from tests.support.command import Command


@pty
class TestLongLines:
    """Terminals keep 4,095 bytes of a line; the editor takes lines of any length."""

    LINE = "def" + " return" * 860

    @pytest.mark.parametrize("elsewhere", [("stdout",), ("stdout", "stderr")], ids="+".join)
    def test_a_pasted_line_is_whole_where_stdout_is_no_terminal(
        self, shared: Command, elsewhere: tuple[str, ...]
    ) -> None:
        with contextlib.ExitStack() as stack:
            files = {name: stack.enter_context((shared.home / name).open("wb")) for name in elsewhere}
            user = stack.enter_context(Terminal(shared, *FEW, "-c", "2048", **files))
            user.prompt()
            user.type(f"\x1b[200~{self.LINE}\x1b[201~\r")
            user.prompt()
            user.enter("/save long.json")
            user.prompt()
            user.type(CTRL_D)
            assert user.wait() == 0
        assert messages(shared, "long.json")[0] == self.LINE
        assert (shared.home / "stdout").read_bytes()

    def test_a_line_that_the_terminal_cuts_is_not_sent(self, shared: Command) -> None:
        with Terminal(shared, *FEW, env={"TERM": "dumb"}) as user:
            user.expect("> ")
            user.type(self.LINE + "\n")
            user.expect("has cut this one")
            user.expect("> ")
            user.ask("zip\n")


@pty
class TestTerminal:
    def test_two_turns_the_second_evaluates_what_is_new(self, command: Command) -> None:
        no_library(command)
        with Terminal(command, *FEW) as user:
            user.prompt()
            first = user.ask("What does zip do?")
            assert (int(first["evaluated"]) > 10, first["reused"]) == (True, "0")
            user.prompt()
            second = user.ask("And list.sort?")
            assert int(second["evaluated"]) < 20 <= int(second["reused"])
            user.prompt()
            user.enter("/stats")
            user.expect("2 answers")
            user.prompt()
            user.enter("/regen")
            assert user.expect(LINE)[1] == "1"
            user.prompt()
            user.type(CTRL_D)
            user.expect("2 turns not saved: type the name of a file that keeps the conversation, or Enter")
            user.enter("no/such/folder/x.json")
            user.expect("cannot be written")
            user.expect("2 turns not saved")
            user.enter("kept.json")
            user.expect("2 turns saved in")
            assert user.wait() == 0
            assert user.restored()
            assert len(json.loads((command.home / "kept.json").read_text())["messages"]) == 4
            assert f"{DIM}{first.group()[:6]}" not in user.seen
            assert re.search(re.escape(DIM) + r"[^\x1b]*prompt \d+ evaluated", user.seen)
        with Terminal(command, *FEW, env={"NO_COLOR": "1"}) as user:
            user.prompt()
            user.type(UP)
            user.expect("/regen")
            user.type(UP + UP)
            user.expect("list.sort")
            user.type("\r")
            user.expect(LINE)
            user.prompt()
            user.enter("/exit")
            user.expect("1 turn not saved")
            user.prompt()
            user.type(CTRL_D)
            assert user.wait() == 0
            assert not re.search(r"\x1b\[[0-9;]*[1-9][0-9;]*m", user.seen)
        history = command.cache / "chat_history"
        assert history.stat().st_mode & 0o777 == 0o600
        assert history.read_text().count("list.sort") == 2

    def test_what_is_loaded_is_said_and_shown(self, shared: Command) -> None:
        arguments = ("-n", "8", "-s", "1", "--temp", "0.5", "--no-calibrate", "--no-history")
        (shared.cache / "chat_history").unlink(missing_ok=True)  # of other tests
        with Terminal(shared, *arguments, "-sys", "Be brief.") as user:
            user.prompt()
            user.ask("What is zip?")
            user.prompt()
            answer = user.text().split("What is zip?")[-1].split("t/s")[0].split("\n")[-2].strip()
            user.enter("/save one.json")
            user.expect("1 turn saved in")
            user.prompt()
            user.enter("/system Be long.")
            user.prompt()
            user.enter("/set top_k 7")
            user.prompt()
            user.enter("/load one.json")
            user.expect("1 turn loaded from one.json")
            user.expect("system message: Be brief.")
            user.expect("the system message before is left out: Be long.")
            user.expect("parameters: .*temperature 0.5")
            user.expect("back to the defaults: top_k")
            user.expect("> What is zip[?]")
            user.expect(re.escape(answer[:40]))
            user.prompt()
            user.enter("/exit")
            assert user.wait() == 0  # nothing is unsaved, so that nothing is asked
        assert not (shared.cache / "chat_history").exists()

    def test_ctrl_c_stops_the_answer_and_keeps_it(self, shared: Command) -> None:
        with Terminal(shared, "--no-calibrate", "-n", "-2", "-c", "8192", "-s", "3") as user:
            user.prompt()
            user.enter("list all")
            user.expect(r"\n(.{12})")
            time.sleep(0.2)
            user.type(CTRL_C)
            user.expect("stopped; what was written is kept", 5)
            user.prompt()
            user.type("abandoned" + CTRL_C)
            user.enter("/set n 5")
            user.expect("max_tokens +5")
            user.prompt()
            user.type(CTRL_C)
            user.expect("/exit leaves")
            user.prompt()
            evaluated, reused = user.ask("go on").groups()
            assert int(evaluated) < 20 < int(reused)
            user.prompt()
            user.enter("/save stopped.json")
            user.prompt()
        asked, kept, again, _ = messages(shared, "stopped.json")
        assert (asked, again) == ("list all", "go on")
        assert len(kept) > 12
        assert kept.splitlines()[0][:30] in user.text()

    def test_several_lines_and_completion(self, shared: Command) -> None:
        with Terminal(shared, *FEW) as user:
            inputs = (
                f"one{ALT_ENTER}two\r",
                '"""\r/help\rtwo\r"""\r',
                "\x1b[200~pasted\nlines\n\x1b[201~\r",
            )
            for keys in inputs:
                user.prompt()
                user.type(keys)
                user.expect(LINE)
            user.prompt()
            user.type("/sys" + TAB + "\r")
            user.expect("no system message")
            user.prompt()
            user.type("/set temp" + TAB + "0.25\r")
            user.expect(r"temperature +0\.25   \(set\)")
            user.prompt()
            user.enter("/save lines.json")
            user.prompt()
        assert messages(shared, "lines.json")[::2] == ["one\ntwo", "/help\ntwo", "pasted\nlines"]

    def test_show_draft_colours_what_was_drafted(self, shared: Command) -> None:
        args = ("--temp", "0", "-n", "60", "--no-calibrate", "--show-draft", "--draft-max", "4")
        code = "Repeat: def total(items): return sum(items) def total(items): return sum(items)"
        texts = []
        for env in ({}, {"NO_COLOR": "1"}):
            with Terminal(shared, *args, env=env) as user:
                user.prompt()
                user.ask(code)
                user.prompt()
                user.enter("/save colours.json")
                user.prompt()
            texts.append(messages(shared, "colours.json")[1])
            answer = user.seen[user.seen.index("?2004l") : user.seen.index(" t/s")]
            assert bool(re.search(r"\x1b\[3[26]m[^\x1b]+\x1b\[0m", answer)) == (not env), answer
            assert ("nothing is marked" in user.text()) == bool(env)
            assert re.sub(r"\s", "", texts[-1]) in re.sub(r"\s", "", user.text())
        assert texts[0] == texts[1]

    def test_reasoning_is_dim_and_stays_in_the_text(self, shared: Command) -> None:
        begun = (
            "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}<think>\n{% endif %}"
        )
        for args, text, thought in (
            ((), "<think>\nhm so</think>yes it is", "<think>\nhm so</think>"),
            (("--chat-template", begun), "hm so</think>yes it is", "hm so</think>"),
            ((), "yes <think>it is", ""),
        ):
            grammar = f"root ::= {json.dumps(text)}"
            with Terminal(shared, "--no-calibrate", "--grammar", grammar, *args) as user:
                user.prompt()
                user.ask("zip")
                user.prompt()
                user.enter("/save thought.json")
                user.prompt()
            assert messages(shared, "thought.json")[1] == text
            answer = user.seen[user.seen.index("?2004l") + 6 :]
            answer = answer[: answer.index(f"\r\n{DIM}")].replace("\r", "")
            dim = "".join(re.findall(r"\x1b\[2m(.*?)\x1b\[0m", answer, re.S))
            assert dim == thought
            assert re.sub(r"\x1b\[\d*m", "", answer) == text

    def test_control_characters_of_the_model_never_reach_the_terminal(self, shared: Command) -> None:
        attack = "a\x1b]0;gone\x07\x1b[2J\rb\x9b31m\x7f\tc"
        escaped = re.sub(r"[^ -~]", lambda c: f"\\x{ord(c.group()):02x}", attack)
        grammar = f'root ::= "{escaped}"'
        assert chat(shared, "zip", args=("--no-calibrate", "--grammar", grammar)).out == attack + "\n"
        with Terminal(shared, "--no-calibrate", "--grammar", grammar) as user:
            user.prompt()
            user.ask("zip")
        assert "a␛]0;gone␇␛[2Jb\ufffd31m␡" in user.seen

    def test_a_killed_engine_loses_nothing(self, command: Command) -> None:
        with Terminal(command, *FEW) as user:
            user.prompt()
            user.ask("What does zip do?")
            user.prompt()
            (engine,) = psutil.Process(user.process.pid).children()
            engine.kill()
            user.enter("and then")
            user.expect("saved: specllama chat --continue 'What does zip do' goes on with it")
            user.expect("error: the engine process was ended by SIGKILL")
            assert user.wait() == 9
            assert user.restored()
            assert "Traceback" not in user.text()
        assert [m["content"] for m in in_library(command)["messages"]][::2] == [
            "What does zip do?",
            "and then",
        ]
        result = chat(command, "/regen", args=(*FEW, "--continue"))
        assert result.code == 0
        assert prompts(result.err)

    def test_an_engine_killed_in_the_midst_leaves_what_was_written(self, command: Command) -> None:
        with Terminal(command, "--no-calibrate", "-n", "-2", "-c", "8192") as user:
            user.prompt()
            user.enter("list all")
            user.expect(r"\n(.{12})")
            (engine,) = psutil.Process(user.process.pid).children()
            engine.kill()
            user.expect(GOES_ON)
            assert user.wait() == 9
        assert len(in_library(command)["messages"][1]["content"]) >= 12

    def test_ctrl_c_twice_leaves_an_engine_that_does_not_stop(self, command: Command) -> None:
        with Terminal(command, "--no-calibrate", "-n", "-2", "-c", "8192") as user:
            user.prompt()
            user.enter("list all")
            user.expect(r"\n(.{12})")
            (engine,) = psutil.Process(user.process.pid).children()
            engine.suspend()
            user.type(CTRL_C)
            time.sleep(0.5)
            user.type(CTRL_C)
            user.expect(GOES_ON)
            assert user.wait() == 130
            assert user.restored()

    @pytest.mark.parametrize("answering", [False, True])
    def test_sigterm(self, command: Command, answering: bool) -> None:
        with Terminal(command, "--no-calibrate", "-n", "-2", "-c", "8192") as user:
            user.prompt()
            user.enter("/set n 5")
            user.prompt()
            user.ask("zip")
            user.prompt()
            if answering:
                user.enter("/set n -2")
                user.prompt()
                user.enter("list all")
                user.expect(r"\n(.{12})")
            (engine,) = psutil.Process(user.process.pid).children()
            user.process.send_signal(signal.SIGTERM)
            user.expect(GOES_ON)
            assert user.wait() == 143
            assert user.restored()
            assert not engine.is_running()

    def test_a_terminal_that_is_closed_loses_nothing(self, command: Command) -> None:
        with Terminal(command, *FEW) as user:
            user.prompt()
            user.ask("zip")
            user.prompt()
            (engine,) = psutil.Process(user.process.pid).children()
            user.hang_up()
            assert user.process.wait(20)
            assert not engine.is_running()
        assert len(in_library(command)["messages"]) == 2

    def test_ctrl_c_while_loading(self, command: Command) -> None:
        with Terminal(command, fork=False) as user:
            while "\x1b[?25h" not in user.seen:  # the editor is there, the models are not
                user.expect("")
                user.read()
            user.type(CTRL_C)
            assert user.wait() == 130
            assert "Traceback" not in user.text()
            assert user.restored()

    def test_measuring_beside_the_prompt_costs_no_reuse(self, command: Command) -> None:
        with Terminal(command, *FEW[1:], "--ignore-eos", "--draft-max", "4") as user:
            user.prompt()
            first = user.ask("What does zip do?")
            user.prompt()
            end, changed, before = time.monotonic() + 40, time.monotonic(), b""
            while b'"t1"' not in before or time.monotonic() < changed + 2:  # until no slice follows
                assert time.monotonic() < end
                time.sleep(0.05)
                now = b"".join(file.read_bytes() for file in command.cache.glob("calibration/*.json"))
                before, changed = now, changed if now == before else time.monotonic()
            second = user.ask("And sort?")
            assert int(second["reused"]) >= int(first["evaluated"]) + 20
            assert int(second["evaluated"]) < 20
            unknown = user.text().count("the speed of plain decoding is unknown")
            assert unknown < 2  # the first answer may say it

    def test_simple_terminals_get_lines(self, command: Command) -> None:
        no_library(command)
        with Terminal(command, *FEW, env={"TERM": "dumb"}) as user:
            user.expect("> ")
            user.type("zip\n")
            user.expect(LINE)
            user.expect("> ")
            user.interrupt("/exit leaves")
            user.type("/exit\n")
            user.expect("1 turn not saved")
            user.type("\n")
            assert user.wait() == 0
            assert "\x1b" not in user.seen

    def test_a_cache_that_cannot_be_written_is_no_error(self, command: Command) -> None:
        command.cache.write_text("a file where the directory should be")
        no_library(command)
        with Terminal(command, *FEW) as user:
            user.prompt()
            user.ask("zip")
            user.prompt()
            (engine,) = psutil.Process(user.process.pid).children()
            engine.kill()
            user.enter("and then")
            path = user.expect(r"--load (\S+\.json) continues it")[1]
            assert user.wait() == 9
        Path(path).unlink()
