"""Programs that use the API as users write them, each in a process of its own: what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.support.paths import ROOT
from tests.support.processes import SOON, is_gone

STRICT = ("-X", "dev", "-W", "error", "-W", "ignore:This process:DeprecationWarning")  # the last: of a fork


class Program:
    """Runs Python programs that begin with `llm`, an LLM, and end in whatever way."""

    BEGIN = """
        import asyncio, os, sys, threading, time
        from specllama import LLM, AsyncLLM, SamplingParams
        llm = LLM("pydoc", max_model_len=32768, n_threads=1, calibrate=False)
        print(llm._engine.client().pid, flush=True)
        FOR_EVER = SamplingParams(max_tokens=-2, seed=1)
        def count(llm):
            params = SamplingParams(max_tokens=3, ignore_eos=True)
            return len(llm.generate("def ", params)[0].outputs[0].token_ids)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.env = {**os.environ, "SPECLLAMA_CACHE": str(path / "cache"), "PYTHONPATH": str(ROOT)}

    def start(self, code: str, begin: str = BEGIN) -> tuple[subprocess.Popen[bytes], psutil.Process]:
        """The program running, and its engine process."""
        file = self.path / "program.py"
        file.write_text(textwrap.dedent(begin) + textwrap.dedent(code))
        program = subprocess.Popen(
            [sys.executable, *STRICT, str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # what comes along with a line stays in the pipe
            env=self.env,
            cwd=self.path,
        )
        assert program.stdout is not None
        pid = program.stdout.readline()
        assert pid, program.communicate()[1]
        return program, psutil.Process(int(pid))

    def __call__(self, code: str) -> str:
        """What it prints, where it ends well and leaves no engine process."""
        program, engine = self.start(code)
        out, err = program.communicate(timeout=3 * SOON)
        assert (program.returncode, err) == (0, b"")
        assert is_gone(engine)
        return out.decode()


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


class TestExit:
    def test_a_script_without_a_main_guard_and_without_close(self, program: Program) -> None:
        out = program("""
            print(count(llm))
        """)
        assert out == "3\n"

    def test_a_generation_that_runs(self, program: Program) -> None:
        program("""
            stream = llm.stream("def ", FOR_EVER)
            next(stream)
        """)

    def test_threads_that_wait(self, program: Program) -> None:
        program("""
            def wait():
                try:
                    llm.generate("def ", FOR_EVER)
                except Exception:
                    pass
            threading.Thread(target=wait, daemon=True).start()
            time.sleep(0.1)
        """)

    def test_an_exception(self, program: Program) -> None:
        running, engine = program.start("next(llm.stream('def ', FOR_EVER)); 1 / 0")
        _, err = running.communicate(timeout=SOON)
        assert running.returncode == 1
        assert err.splitlines()[-1] == b"ZeroDivisionError: division by zero"
        assert is_gone(engine)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_signals(self, program: Program, number: int) -> None:
        running, engine = program.start("print('go', flush=True); llm.generate('def ' * 8, FOR_EVER)")
        assert running.stdout is not None
        running.stdout.readline()
        time.sleep(0.1)
        running.send_signal(number)
        _, err = running.communicate(timeout=SOON)
        assert running.returncode == -number
        assert is_gone(engine)
        assert (b"KeyboardInterrupt" in err) == (number == signal.SIGINT)

    def test_ctrl_c_can_be_survived(self, program: Program) -> None:
        """The prompts that were running are ended, the next ones find their slots free."""
        running, engine = program.start("""
            try:
                print("go", flush=True)
                llm.generate(["def "] * 8, FOR_EVER)
            except KeyboardInterrupt:
                started = time.monotonic()
                print(count(llm))
                assert time.monotonic() - started < 20
        """)
        assert running.stdout is not None
        running.stdout.readline()
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=SOON)
        assert (out, err) == (b"3\n", b"")
        assert is_gone(engine)

    def test_an_llm_that_is_replaced_frees_its_memory(self, program: Program) -> None:
        out = program("""
            import gc, psutil
            old = psutil.Process(llm._engine.client().pid)
            llm = LLM("pydoc", n_threads=1, calibrate=False)
            gc.collect()
            deadline = time.monotonic() + 20
            while old.is_running() and old.status() != "zombie" and time.monotonic() < deadline:
                time.sleep(0.01)
            assert time.monotonic() < deadline
            print(count(llm))
        """)
        assert out == "3\n"

    def test_asynchronous_without_aclose(self, program: Program) -> None:
        program("""
            async def main():
                other = AsyncLLM("pydoc", n_threads=1, calibrate=False)
                async for output in other.generate("def ", FOR_EVER):
                    break
            asyncio.run(main())
        """)


class TestSurroundings:
    def test_in_a_running_loop_as_in_a_notebook(self, program: Program) -> None:
        out = program("""
            async def cell():
                with LLM("pydoc", n_threads=1, calibrate=False) as other:
                    return count(other)
            print(asyncio.run(cell(), debug=False))
        """)
        assert out == "3\n"

    def test_a_forked_child_is_told_and_does_no_harm(self, program: Program) -> None:
        """It can make its own; the parent's goes on; no copy of a pipe keeps the engine alive."""
        out = program("""
            from specllama.errors import EngineError
            stream = llm.stream("def ", FOR_EVER)
            next(stream)
            child = os.fork()
            if child == 0:
                try:
                    for use in (lambda: llm.generate("def "), lambda: next(llm.stream("def "))):
                        try:
                            use()
                        except EngineError as error:
                            print(error.message, flush=True)
                    stream.close()
                    llm.close()
                    with LLM("pydoc", n_threads=1, calibrate=False) as own:
                        print(count(own), flush=True)
                finally:
                    os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            next(stream)
            print(count(llm), flush=True)
            sleeper = os.fork()
            if sleeper == 0:
                os.close(1), os.close(2)
                time.sleep(20)
                os._exit(0)
        """)
        error = "this engine belongs to the process that this one was forked from"
        assert out.splitlines() == [error, error, "3", "3"]

    def test_a_forked_child_that_exits_as_scripts_do(self, program: Program) -> None:
        out = program("""
            child = os.fork()
            if child == 0:
                sys.exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            print(count(llm))
        """)
        assert out == "7\n3\n"

    def test_a_killed_engine(self, program: Program) -> None:
        out = program("""
            from specllama.errors import EngineDiedError
            errors = []
            def wait():
                try:
                    llm.generate(["def "] * 6, FOR_EVER)
                except EngineDiedError as error:
                    errors.append(error)
            threads = [threading.Thread(target=wait) for _ in range(3)]
            for thread in threads:
                thread.start()
            time.sleep(0.1)
            os.kill(llm._engine.client().pid, 9)
            for thread in threads:
                thread.join(1)
            print(len(errors), len({id(error) for error in errors}), "SIGKILL" in str(errors[0]))
            try:
                llm.generate("def ")
            except EngineDiedError as error:
                print("SIGKILL" in str(error))
        """)
        assert out == "3 3 True\nTrue\n"


def test_importing_the_names_loads_no_engine() -> None:
    code = "import sys\nfrom specllama import LLM, AsyncLLM, RequestOutput, SamplingParams\n"
    code += "print({'numpy', 'llama_cpp', 'jinja2', 'typer'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "set()\n"
