"""Every command on a terminal, with sequences in all that others wrote: models, templates, GGUF fields, file
names, answers of a hub.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from specllama.config.store import Store
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from tests.support import tinygguf
from tests.support.command import Command
from tests.support.ggufbytes import llama, vocab_metadata, words
from tests.support.hub import LocalHub, Repo
from tests.support.serving import Api

pytestmark = pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs pseudo-terminals")
if hasattr(os, "openpty"):
    from tests.support.chat_pty import CTRL_C, Terminal

CLIPBOARD, LINK = "\x1b]52;c;ZXZpbA==\x07", "\x1b]8;;https://evil.example\x1b\\here\x1b]8;;\x1b\\"
EVIL = f"{CLIPBOARD}{LINK}\x1b[2J\x9b31m\r\u202e[red]x[/red]"
OWN = re.compile(r"\x1b\[[0-9;]*m|\r?\x1b\[2K|\r\n")
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202d\u202e]")
SHORT = "\x1b]0;ab\x07\x9b2"  # as long in UTF-8 as the name that it replaces


def check(user: Terminal, *needles: str) -> str:
    """What the terminal got: no sequences but ours, and the needles."""
    text = OWN.sub("\n", user.seen)
    assert STEERING.findall(text) == [], user.seen
    for needle in needles:
        assert needle in text, user.seen
    return text


def shown(command: Command, verb: str, *args: str, code: int, needles: tuple[str, ...] = ()) -> str:
    with Terminal(command, *args, verb=verb) as user:
        ended = user.wait()
        text = check(user, *needles)
    assert ended == code, text
    return text


@pytest.fixture
def evil(shared: Command) -> Path:
    """A model that runs, whose name is a sequence."""
    path = tinygguf.llama(shared.home / f"tiny{CLIPBOARD}.gguf")
    data = path.read_bytes()
    assert data.count(b"tiny-llama") == 1
    assert len(SHORT.encode()) == len(b"tiny-llama")
    path.write_bytes(data.replace(b"tiny-llama", SHORT.encode()))
    return path


def test_what_a_model_writes_is_filtered_on_a_terminal_only(shared: Command) -> None:
    text = EVIL.replace("\u202e", "")
    quoted = "".join(c if c.isalnum() else f"\\x{ord(c):02x}" for c in text)
    args = ("-p", "zip", "--no-calibrate", "--grammar", f'root ::= "{quoted}"')
    assert shared("run", *args).raw == text.encode() + b"\n"
    shown(shared, "run", *args, code=0, needles=("␛]52;c;ZXZpbA==␇", "[red]x[/red]"))


def test_errors_of_templates_are_filtered(shared: Command) -> None:
    template = "{{ raise_exception('" + EVIL + "') }}"
    args = ("-p", "zip", "--chat-template", template)
    shown(shared, "run", *args, code=2, needles=("␛]52;c;ZXZpbA==␇", "[red]x[/red]"))


def test_fields_of_a_model_and_its_log_are_filtered(shared: Command, evil: Path) -> None:
    args = ("-m", str(evil), "-md", str(evil), "-n", "2", "-p", "x", "--no-calibrate")
    needles = ("general.name", "draft \\x1b]0;ab\\x07\\x9b2 F32", "2 tokens at ")
    log = ("--log-file", "/dev/stderr")
    shown(shared, "run", *args, *log, code=0, needles=needles)


def test_reports_on_files_are_filtered(shared: Command) -> None:
    keys = {"general.name": EVIL, "general.license": EVIL, "tokenizer.ggml.pre": EVIL}
    tokens = [*words(40), EVIL]
    data = llama(tokens=tokens, metadata={**vocab_metadata(tokens), **keys}).build()
    odd = shared.home / f"odd{EVIL.replace('/', '-')}.gguf"
    odd.write_bytes(data)
    snapshot = shared.home / ".cache/huggingface/hub/models--me--mine/snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "m-Q4_0.gguf").write_bytes(data)
    shown(shared, "pair-check", str(odd), str(EMBEDDED_DRAFT), code=7, needles=("]52;c;ZXZpbA==",))
    shown(shared, "models", code=0, needles=("me/mine:Q4_0", r"\x1b]52;c;ZXZpbA==\x07"))
    odd.write_bytes(llama(metadata={"general.architecture": EVIL}).build())
    for verb, args in (("pair-check", (str(odd), str(odd))), ("run", ("-p", "x", "-m", str(odd)))):
        shown(shared, verb, *args, code=6, needles=("]52;c;ZXZpbA==",))
    shown(
        shared, "pair-check", str(odd), str(odd), "--debug", code=1, needles=("Traceback", "]52;c;ZXZpbA==")
    )
    for verb in ("bench",):
        shown(shared, verb, "-m", f"no{CLIPBOARD}.gguf", code=3, needles=("no␛]52;c;ZXZpbA==␇.gguf",))
    Store(shared.cache / "calibration").write({"model": [EVIL, "Q4_0", 1]}, {"t1": 0.1})
    shown(shared, "doctor", "--all", code=0, needles=("␛]52;c;ZXZpbA==␇",))


def test_what_a_hub_answers_is_filtered(shared: Command, hub: LocalHub) -> None:
    hub.repos["me/mine"] = Repo(
        {f"m{EVIL.replace('/', '-')}-Q4_0.gguf": EMBEDDED_TARGET.read_bytes()}, licence=EVIL
    )
    with Terminal(shared, "me/mine", verb="pull", env=hub.environ()) as user:
        assert user.wait() != 0
        check(user, "error: ")


def test_lines_of_a_server_are_filtered(shared: Command, evil: Path) -> None:
    with Terminal(shared, "-m", str(evil), "--port", "0", "--no-calibrate", "-v", verb="serve") as user:
        port = user.expect(r"serving tiny\S+ at http://127\.0\.0\.1:(\d+)/v1")[1]
        fails = "{{ raise_exception('x') }}" + EVIL
        Api("127.0.0.1", int(port)).post("/v1/completions", {"prompt": "x", "max_tokens": 2, "model": fails})
        user.expect(r"POST /v1/completions")
        user.type(CTRL_C)
        user.wait()
        check(user, r"tiny\x1b]52;c;ZXZpbA==\x07", "general.name")
