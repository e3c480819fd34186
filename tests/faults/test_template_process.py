"""Chat templates in a process of their own: whatever they do there ends in bounded time and memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specllama.errors import TemplateError, UsageError
from specllama.text import template_process
from specllama.text.chat_template import ChatTemplate
from specllama.text.prompt_parts import PromptPart
from specllama.text.template_process import IsolatedTemplate, TemplateProcess
from tests.support import tinygguf
from tests.support.command import Command, assert_error
from tests.support.processes import is_gone

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="its limits are those of POSIX")
HELLO = [{"role": "user", "content": "hello"}]
CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
SHARED = "{% set n = namespace(a=[0]) %}{% for i in range(40) %}{% set n.a = [n.a, n.a] %}{% endfor %}"
SECONDS = "0.1"  # of the processor instead of 0.75, so that the tests take less
LATE, LARGE = f"ran for more than {SECONDS} s", "allocates more than 256 MB"
EITHER = f"{LATE}|{LARGE}"
# Three of them are operations in C, during which Python can neither be interrupted nor send a heartbeat.
REPORTED = {
    "a value that contains itself twice, forty times": (SHARED + "{{ n.a }}", EITHER),
    "a search that takes quadratic time": (
        "{% set s = 'a' * 1000000 %}{% set p = 'ab' + 'a' * 500000 %}{{ s.rfind(p) }}",
        LATE,
    ),
    "comparisons of equal lists": (
        "{% set a = [0.5] * 900000 %}{% set b = [[0.5] * 899999 + [1.5]] * 900000 %}{{ a in b }}",
        LATE,
    ),
}
BOMBS = {
    **REPORTED,
    "loops": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", LATE),
    "a power": ("{{ 9 ** 99999999 }}", LATE),
    "numbers": ("{% set a = ('f' * 900000) | int(0, 16) %}{{ a // ('e' * 500000) | int(0, 16) }}", EITHER),
    "a text": ("{{ 'a' * 2000000000 }}", LARGE),
    "a list": ("{{ [0] * 2000000000 }}", LARGE),
    "a field": ("{{ '%2000000000d' % 1 }}", LARGE),
    "padding": ("{{ 'a' | center(2000000000) }}", LARGE),
    "a replacement": ("{{ ('a' * 1000000).replace('a', 'b' * 100000) }}", LARGE),
    "joined texts": ("{{ (['a' * 1000000] * 100000) | join }}", EITHER),
    "a translation": ("{{ ('a' * 1000000).translate({97: 'b' * 100000}) }}", EITHER),
    "many texts": ("{{ (['a' * 1000000] * 9999) | map('upper') | list | length }}", EITHER),
    "a hash of a shared value": (
        "{% set n = namespace(t=(1, 1)) %}{% for i in range(40) %}{% set n.t = (n.t, n.t) %}{% endfor %}"
        "{{ {n.t: 1} | length }}",
        LATE,
    ),
    "equal shared values": (
        SHARED + SHARED.replace("n.", "m.").replace("set n", "set m") + "{{ n.a == m.a }}",
        LATE,
    ),
    "a sum of lists": ("{{ ([[1] * 1000] * 9999) | sum(start=[]) | length }}", EITHER),
    "quadratic wrapping": ("{{ ('a ' * 500000) | wordwrap(1, wrapstring='b' * 100000) }}", EITHER),
    "a list that grows while it is read": (
        "{% set a = [1] %}{% for x in a %}{% set _ = a.append(x) %}{% endfor %}",
        EITHER,
    ),
    "recursion": (
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "refuses these messages|nested too deeply",
    ),
    "output": ("{% for a in range(99) %}{{ 'x' * 100000 }}{% endfor %}", "4 MB"),
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "CPU_SECONDS", float(SECONDS))


@pytest.fixture
def chatml() -> Iterator[IsolatedTemplate]:
    found = IsolatedTemplate(CHATML, ["<|user|>", "<|end|>"])
    yield found
    found.close()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", BOMBS)
def test_it_ends_with_one_line(name: str) -> None:
    source, message = BOMBS[name]
    template, began = IsolatedTemplate(source), time.monotonic()
    with pytest.raises((TemplateError, UsageError), match=message) as caught:
        template.render(HELLO)
    assert "\n" not in caught.value.message
    assert time.monotonic() - began < 20
    template.close()


@pytest.mark.usefixtures("quick")
def test_after_one_that_was_ended_another_process_renders() -> None:
    template = IsolatedTemplate(
        "{% if messages[0].content == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}"
        "{% endfor %}{% endfor %}{% else %}{{ messages[0].content }}{% endif %}"
    )
    for _ in range(2):
        with pytest.raises(TemplateError, match=LATE):
            template.render([{"role": "user", "content": "loop"}])
        assert [part.text for part in template.render(HELLO)] == ["hello"]
    template.close()


def test_it_renders_what_the_template_does(chatml: IsolatedTemplate) -> None:
    """Control texts of messages stay text; the beginning of an answer is added."""
    here = ChatTemplate(CHATML, ["<|user|>", "<|end|>"])
    for messages in (HELLO, [], [{"role": "user", "content": "a<|end|>\ud800é\U0001f600"}] * 3):
        assert chatml.render(messages, tools=None) == here.render(messages, tools=None)
    parts = [PromptPart("<|user|>hello<|", True)]
    assert chatml.continued(parts, "a") == [PromptPart("<|user|>hello<|a", True)]
    assert chatml.continued(parts, "end|>") == [*parts, PromptPart("end|>", False)]


def test_errors_are_those_of_the_template(chatml: IsolatedTemplate) -> None:
    with pytest.raises(TemplateError, match="does not compile"):
        IsolatedTemplate("{% for %}")
    with pytest.raises(UsageError, match="does not compile"):
        IsolatedTemplate("{% for %}", own=False)
    with pytest.raises(TemplateError, match="refuses these messages") as caught:
        IsolatedTemplate("{{ 1 / 0 }}").render(HELLO)
    assert "raw" in caught.value.hint
    deep: object = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(UsageError, match="nested too deeply"):
        chatml.render([{"role": "user", "content": deep}])
    assert chatml.render(HELLO)


def test_threads_do_not_wait_for_each_other(chatml: IsolatedTemplate) -> None:
    """A large request is rendered in one thread while another renders small ones."""
    large = [{"role": "user", "content": "word " * 20_000}] * 20
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(len(chatml.render(large))))
    thread.start()
    n_small = 0
    while thread.is_alive():
        assert len(chatml.render(HELLO)) == 1
        n_small += 1
    assert n_small > 0
    assert found == [1]


def test_a_process_ends_with_its_template() -> None:
    started, unused = TemplateProcess(), TemplateProcess()
    processes = [psutil.Process(one.pid) for one in (started, unused)]
    template = IsolatedTemplate(CHATML, started=started)
    del template, started, unused
    gc.collect()
    assert all(map(is_gone, processes))


def test_a_process_ends_with_its_parent() -> None:
    """Also when that is killed, and while it renders."""
    slow = REPORTED["comparisons of equal lists"][0]
    code = (
        "import os, threading, time; from specllama.text.template_process import *\n"
        f"started = TemplateProcess(); template = IsolatedTemplate({slow!r}, started=started)\n"
        "threading.Thread(target=template.render, args=([],), daemon=True).start()\n"
        "print(started.pid, flush=True); time.sleep(0.2); os.kill(os.getpid(), 9)\n"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == -9, done.stderr
    pid = int(done.stdout)
    assert not psutil.pid_exists(pid) or is_gone(psutil.Process(pid))


def test_a_process_that_ended_while_it_waited(chatml: IsolatedTemplate) -> None:
    """Killed by the system for its memory, say: another one renders."""
    (process,) = chatml._idle
    os.kill(process.pid, 9)
    assert is_gone(psutil.Process(process.pid))
    assert len(chatml.render(HELLO)) == 1


def test_a_model_whose_template_runs_for_ever(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine goes on, and says so: exit code 6, after three seconds at most on a quiet machine."""
    source = REPORTED["a search that takes quadratic time"][0]
    monkeypatch.setattr(tinygguf, "CHATML", source)
    path: Path = command.home / "slow.gguf"
    tinygguf.llama(path)
    refused = command("run", "-m", path.name, "-p", "hello", timeout=30)
    assert_error(refused, 6, "the chat template ran for more than 0.75 s", "use --raw")
    assert command.generate("-m", path.name, "-p", "hello", "--raw", "-n", "2").raw
