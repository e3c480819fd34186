"""A chat template in processes of its own, which the system limits. Knows no Jinja.

Whatever a template and the messages make them do, they end in bounded time, memory and output, and nothing
else ends with them.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.errors import EngineError, SpecllamaError, TemplateError, UsageError
from specllama.processor_time import exits, of_tree, wait_while_working
from specllama.python_command import module_command
from specllama.text.control_tokens import ControlTexts, PromptPart
from specllama.text.prompt_parts import HINT, MAX_CHARS, Message, continued, nested_too_deeply

CPU_SECONDS, COMPILE_SECONDS = 0.75, 2.0  # of the processor: of a rendering, of a compilation
MAX_BYTES = 256 * 1024 * 1024  # that one of them may allocate
SECONDS = 10.0  # of work at most where the system does not bound it, and of standing still
OUT_OF_MEMORY = 17  # exit code of a process that has used MAX_BYTES
_BYTES_A_CHAR = 12  # of JSON in ASCII, at most
_GRACE_SECONDS = 1.0


class TemplateProcess:
    """One process of template_worker.py, which starts at once; one thread at a time may call `ask`."""

    def __init__(self) -> None:
        try:
            self._process = subprocess.Popen(
                module_command("specllama.text.template_worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise EngineError(f"the process for chat templates cannot be started: {error}") from None
        self._over = ""  # which limit this process has ended it for
        self._end = weakref.finalize(self, _end, self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], seconds: float) -> list[PromptPart]:
        """The parts that it renders; none for the first request, which compiles the template. seconds: that
        it may take of the processor.

        Raises what the template raises, RecursionError for messages that are nested too deeply, and
        _EndedError where the process has ended.
        """
        data = json.dumps({"seconds": seconds, "given": request}, default=dict).encode() + b"\n"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(done,), daemon=True)
        watcher.start()
        line = b""
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
            line = self._process.stdout.readline(_BYTES_A_CHAR * (len(data) + 2 * MAX_CHARS))
        except OSError:
            pass  # a broken pipe: it has ended
        finally:
            done.set()
            watcher.join()
        if not line.endswith(b"\n"):
            raise _EndedError(self._ending(seconds))
        answer = json.loads(line)
        if "error" in answer:
            raise SpecllamaError.from_dict(answer["error"])
        return [PromptPart(text, special) for text, special in answer["parts"]]

    def close(self) -> None:
        """End it."""
        self._end()

    def _watch(self, done: threading.Event) -> None:
        self._over = wait_while_working(done.wait, of_tree(self.pid), SECONDS)
        if self._over:
            self._process.kill()

    def _ending(self, seconds: float) -> str:
        """Why it has ended, in words that follow "the chat template"."""
        exits(self._process, _GRACE_SECONDS)
        self.close()
        code = self._process.returncode
        if code == OUT_OF_MEMORY:
            return f"allocates more than {MAX_BYTES >> 20} MB"
        if self._over:
            return self._over
        if -code == signal.SIGPROF:
            return f"ran for more than {seconds:g} s of processor time"
        return f"ended its process, with code {code}"


class _EndedError(Exception):
    """The process has ended."""


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.kill()
    process.wait()


class IsolatedTemplate:
    """A PromptTemplate in a process of its own, in as many as threads render at the same time. Raises
    TemplateError if it does not compile.

    The parameters are those of ChatTemplate. started: a process that was started before, to save its time.
    """

    def __init__(
        self,
        source: str,
        control_texts: Sequence[str] = (),
        bos: str = "",
        eos: str = "",
        own: bool = True,
        started: TemplateProcess | None = None,
    ) -> None:
        self._error: type[SpecllamaError] = TemplateError if own else UsageError
        self._setup = {
            "source": source,
            "control_texts": list(control_texts),
            "bos": bos,
            "eos": eos,
            "own": own,
        }
        self._control = ControlTexts(control_texts)
        self._idle = [self._compiled(started or TemplateProcess())]

    def render(self, messages: Sequence[Message], **variables: Any) -> list[PromptPart]:
        """See ChatTemplate; also raises TemplateError (UsageError for the user's template) after CPU_SECONDS
        of the processor, and where the template allocates more than MAX_BYTES.
        """
        process = self._taken()
        request = {"messages": messages, "variables": variables}
        try:
            parts = process.ask(request, CPU_SECONDS)
        except _EndedError as ended:
            raise self._error(f"the chat template {ended}", HINT) from None
        except RecursionError:
            self._idle.append(process)
            raise nested_too_deeply() from None
        except SpecllamaError:
            self._idle.append(process)
            raise
        self._idle.append(process)
        return parts

    def continued(self, parts: Sequence[PromptPart], text: str) -> list[PromptPart]:
        """See PromptTemplate."""
        return continued(self._control, parts, text)

    def _taken(self) -> TemplateProcess:
        """A process that nobody uses."""
        while True:
            try:
                process = self._idle.pop()
            except IndexError:
                return self._compiled(TemplateProcess())
            if process.is_running:
                return process
            process.close()  # the system has ended it, for its memory

    def close(self) -> None:
        """End its processes."""
        while self._idle:
            self._idle.pop().close()

    def _compiled(self, process: TemplateProcess) -> TemplateProcess:
        try:
            process.ask(self._setup, COMPILE_SECONDS)
        except _EndedError as ended:
            raise self._error(f"the chat template {ended}", HINT) from None
        except SpecllamaError:
            process.close()
            raise
        return process
