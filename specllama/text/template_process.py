"""A chat template in processes of its own, which the system limits. The parent knows no Jinja.

Whatever a template and the messages make them do, they end in bounded time, memory and output, and nothing
else ends with them. A process, `python -m specllama.text.template_process`, reads JSON lines from stdin and
answers on stdout: the first one compiles the template, each of the others renders messages with it. The
system ends it after some processor time, in the middle of any operation, and gives it no more than some
memory; the parent reports that, and starts another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specllama.errors import EngineError, SpecllamaError, TemplateError, UsageError
from specllama.json_types import JsonObject
from specllama.processor_time import exits, of_tree, wait_while_working
from specllama.python_command import module_command
from specllama.text.prompt_parts import HINT, MAX_CHARS, ControlTexts, Message, PromptPart, nested_too_deeply

CPU_SECONDS, COMPILE_SECONDS = 0.75, 2.0  # of the processor: of a rendering, of a compilation
MAX_BYTES = 256 * 1024 * 1024  # that one of them may allocate
SECONDS = 10.0  # of work at most where the system does not bound it, and of standing still
OUT_OF_MEMORY = 17  # exit code of a process that has used MAX_BYTES
_BYTES_A_CHAR = 12  # of JSON in ASCII, at most
_GRACE_SECONDS = 1.0
_CHECK_SECONDS = 0.02
_KILOBYTE = 1 if sys.platform == "darwin" else 1024  # bytes in the unit of ru_maxrss

RenderedPart = tuple[str, bool]  # text, parse_special


class TemplateProcess:
    """One process, which starts at once; one thread at a time may call `ask`."""

    def __init__(self) -> None:
        try:
            self._process = subprocess.Popen(
                module_command("specllama.text.template_process"),
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
    """A chat template in a process of its own, in as many as threads render at the same time. Raises
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
        """The parts followed by the start of an answer, in which no control token is parsed. It is added to
        the last part, and tokenised with it, unless that would create a control text.
        """
        if not text or not parts:
            return [*parts, PromptPart(text, False)] if text else list(parts)
        last, both = parts[-1], parts[-1].text + text
        control = self._control
        if not last.parse_special or len(list(control.find(both))) == len(list(control.find(last.text))):
            return [*parts[:-1], PromptPart(both, last.parse_special)]
        return [*parts, PromptPart(text, False)]

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


def main() -> None:
    """Serve until stdin is closed."""
    from specllama.text.chat_template import ChatTemplate

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its parent
    reader, writer = os.fdopen(0, "rb", closefd=False), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump would hold users' texts
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # a template writes no files
    template: ChatTemplate | None = None

    def compiled(given: JsonObject) -> list[RenderedPart]:
        nonlocal template
        template = ChatTemplate(**given)
        return []

    def rendered(given: JsonObject) -> list[RenderedPart]:
        assert template is not None
        parts = template.render(given["messages"], **given["variables"])
        return [(part.text, part.parse_special) for part in parts]

    for line in reader:
        answer = _answer(line, compiled if template is None else rendered)
        writer.write(json.dumps(answer).encode() + b"\n")
        writer.flush()


def _answer(line: bytes, work: Callable[[JsonObject], list[RenderedPart]]) -> JsonObject:
    """The line that answers one: the parts, or the fields of a SpecllamaError."""
    try:
        request = json.loads(line)
        with _limited(request["seconds"]):
            return {"parts": work(request["given"])}
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except RecursionError:
        return {"error": nested_too_deeply().to_dict()}
    except SpecllamaError as error:
        return {"error": error.to_dict()}


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Within the block the system ends the process after `seconds` of the processor, even inside an operation
    that Python could not interrupt. Raises MemoryError, or ends with OUT_OF_MEMORY, beyond MAX_BYTES.
    """
    with _limited_memory():
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends a process
        try:
            yield
        finally:
            if hasattr(signal, "setitimer"):
                signal.setitimer(signal.ITIMER_PROF, 0)


@contextlib.contextmanager
def _limited_memory() -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    import resource

    if sys.platform == "linux":
        with open("/proc/self/statm", "rb") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
        before, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = used + MAX_BYTES if hard == resource.RLIM_INFINITY else min(hard, used + MAX_BYTES)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (before, hard))
        return
    done = threading.Event()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KILOBYTE + MAX_BYTES

    def watch() -> None:
        while not done.is_set():
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KILOBYTE > most:
                os._exit(OUT_OF_MEMORY)
            time.sleep(_CHECK_SECONDS)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


if __name__ == "__main__":
    main()
