"""AsyncLLM with the embedded pair: many at once, and however one leaves, the engine does not go on."""

from __future__ import annotations

import asyncio
import gc
import itertools
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from specllama import LLM, AsyncLLM, RequestOutput, SamplingParams
from specllama.errors import EngineDiedError, EngineError, IntegrityError, NotFoundError, UsageError
from tests.support import tinygguf
from tests.support.forks import ENGINES
from tests.support.processes import SOON, is_gone

FREE = 2.0  # seconds after which a slot is free; one, and one more for a busy machine
OPTIONS: dict[str, Any] = {"n_threads": 1, "calibrate": False}
ONE_SLOT: dict[str, Any] = {"max_num_seqs": 1, **OPTIONS}
WARM = SamplingParams(temperature=0.8, max_tokens=30, ignore_eos=True, seed=7)
SHORT = SamplingParams(max_tokens=2, ignore_eos=True)
FOR_EVER = SamplingParams(max_tokens=-2, seed=1)
QUESTION = [{"role": "user", "content": "What does shutil.copytree do?"}]
T = TypeVar("T")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))


def run(main: Coroutine[Any, Any, T]) -> T:
    """In a loop that complains: about slow callbacks, and exceptions that nobody asked for."""

    async def bounded() -> T:
        loop, complaints = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(3 * SOON):
            result = await main
        gc.collect()
        await asyncio.sleep(0)
        assert complaints == []
        return result

    return asyncio.run(bounded(), debug=True)


async def last(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    """The output that a request ends with."""
    latest = None
    async for output in outputs:
        latest = output
    assert latest is not None
    assert latest.finished
    return latest


async def text(outputs: AsyncIterator[RequestOutput]) -> str:
    return (await last(outputs)).outputs[0].text


async def soon_free(llm: AsyncLLM) -> None:
    """The only slot is free again."""
    async with asyncio.timeout(FREE):
        assert len((await last(llm.generate("import ", SHORT))).outputs[0].token_ids) == 2


async def begun(llm: AsyncLLM, **more: Any) -> Any:
    stream = llm.generate("def ", FOR_EVER, **more)
    await anext(stream)
    return stream


@asynccontextmanager
async def beating(longest: float) -> AsyncIterator[None]:
    """The loop never waits longer than this for its turn."""
    gaps = [0.0]

    async def beat() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            gaps.append(time.monotonic() - before)

    task = asyncio.create_task(beat())
    yield
    task.cancel()
    assert max(gaps) < longest


def test_outputs_grow_to_the_text_of_the_other_api() -> None:
    async def main() -> list[RequestOutput]:
        async with AsyncLLM(**ONE_SLOT) as llm:
            assert llm.info["speculation"] == "on"
            return [output async for output in llm.generate("def read(", WARM, "mine")]

    outputs = run(main())
    with LLM(**ONE_SLOT) as llm:
        wanted = llm.generate("def read(", WARM)[0]
    texts = [output.outputs[0].text for output in outputs]
    assert all(after.startswith(before) for before, after in itertools.pairwise(texts))
    assert texts[-1] == wanted.outputs[0].text
    assert outputs[-1].outputs[0].token_ids == wanted.outputs[0].token_ids
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert {output.request_id for output in outputs} == {"mine"}
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert outputs[-1].stats.decode_tps is not None


def test_eight_at_once_as_alone(tmp_path: Path) -> None:
    target = tinygguf.llama(tmp_path / "target.gguf")
    draft = tinygguf.llama(tmp_path / "draft.gguf", noise=0.1)
    exact: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}

    async def main() -> None:
        async with AsyncLLM(target, draft, 4, **exact, **OPTIONS) as llm:
            prompts = [f"{word} read(" for word in "abcdefgh"]
            alone = [await text(llm.generate(prompt, WARM)) for prompt in prompts]
            async with beating(0.5):
                together = await asyncio.gather(*(text(llm.generate(prompt, WARM)) for prompt in prompts))
            assert together == alone
            assert len(set(alone)) == 8

    run(main())


def test_chat_and_stream_and_choices() -> None:
    async def main() -> None:
        async with AsyncLLM(**ONE_SLOT) as llm:
            answer = await text(llm.chat(QUESTION, WARM))
            parts = [part async for part in llm.stream(QUESTION, WARM)]
            assert "".join(part.text for part in parts) == answer
            assert [part.finished for part in parts].index(True) == len(parts) - 1
            assert sum(n for part in parts for n, _ in part.runs) == len(answer)
            prompt = await text(llm.generate("def read(", WARM))
            assert "".join([part.text async for part in llm.stream("def read(", WARM)]) == prompt
            tokenizer = await llm.get_tokenizer()
            assert await asyncio.to_thread(tokenizer.encode, "def ", False) == [330, 223]
            params = {"max_tokens": 5, "seed": 3, "temperature": 2, "n": 3}
            output = await last(llm.generate("def ", params))
            assert [one.index for one in output.outputs] == [0, 1, 2]
            assert [one.finish_reason for one in output.outputs] == ["length"] * 3
            assert len({one.text for one in output.outputs}) == 3

    run(main())


def test_a_slow_reader_gets_fewer_outputs() -> None:
    async def main() -> None:
        async with AsyncLLM(**ONE_SLOT) as llm:
            n, seen = 0, 0
            async for output in llm.generate("def ", SamplingParams(max_tokens=200, ignore_eos=True)):
                n, seen = n + 1, len(output.outputs[0].token_ids)
                await asyncio.sleep(0.2)
            assert seen == 200
            assert n < 20

    run(main())


class TestLeaving:
    """One slot: a generation that goes on, as these do for a minute, would keep the next one waiting."""

    @pytest.mark.parametrize("how", ["aclose", "break", "forget", "cancel", "timeout", "prefill"])
    def test_the_slot_is_free_at_once(self, how: str) -> None:
        async def main() -> None:
            async with AsyncLLM(max_model_len=32768, **ONE_SLOT) as llm:
                await LEAVE[how](llm)
                await soon_free(llm)
                assert llm._running == {}

        run(main())

    def test_one_that_waits_for_a_slot(self) -> None:
        async def main() -> None:
            async with AsyncLLM(**ONE_SLOT) as llm:
                running = await begun(llm)
                waiting = asyncio.create_task(last(llm.generate("import ", FOR_EVER)))
                await asyncio.sleep(0.05)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await running.aclose()
                await soon_free(llm)

        run(main())

    def test_abort_ends_it_for_its_reader(self) -> None:
        async def main() -> None:
            async with AsyncLLM(**ONE_SLOT) as llm:
                stream = await begun(llm, request_id="a")
                assert not await llm.abort("b")
                assert await llm.abort("a")
                async with asyncio.timeout(FREE):
                    output = await last(stream)
                assert output.outputs[0].finish_reason == "cancel"
                assert output.outputs[0].text
                assert output.stats.n_predict == len(output.outputs[0].token_ids)
                assert not await llm.abort("a")
                await soon_free(llm)

        run(main())

    def test_abort_before_it_is_loaded(self) -> None:
        async def main() -> None:
            llm = AsyncLLM(**ONE_SLOT)
            reading = asyncio.create_task(last(llm.generate("def ", FOR_EVER, "early")))
            await asyncio.sleep(0)
            assert await llm.abort("early")
            output = await reading
            assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("", "cancel")
            await soon_free(llm)
            await llm.aclose()

        run(main())


async def _aclose(llm: AsyncLLM) -> None:
    await (await begun(llm)).aclose()


async def _break(llm: AsyncLLM) -> None:
    async for output in llm.generate("def ", FOR_EVER):
        if len(output.outputs[0].token_ids) > 3:
            break


async def _forget(llm: AsyncLLM) -> None:
    await begun(llm)


async def _cancel(llm: AsyncLLM) -> None:
    task = asyncio.create_task(last(llm.generate("def ", FOR_EVER)))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _prefill(llm: AsyncLLM) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await anext(llm.generate([300] * 32000, FOR_EVER))


async def _timeout(llm: AsyncLLM) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await last(llm.generate("def ", FOR_EVER))


LEAVE: dict[str, Callable[[AsyncLLM], Awaitable[None]]] = {
    "aclose": _aclose, "break": _break, "forget": _forget, "cancel": _cancel, "timeout": _timeout,
    "prefill": _prefill,
}  # fmt: skip


class TestLoading:
    def test_the_loop_is_not_blocked(self) -> None:
        async def main() -> None:
            async with beating(0.3):
                llm = AsyncLLM(**OPTIONS)
                assert llm.info == {}
                texts = await asyncio.gather(*(text(llm.generate("def ", WARM)) for _ in range(3)))
                assert all(texts)
                assert llm.info["n_ctx"] == 2048
                assert await llm.load() is llm.info
                await llm.aclose()

        run(main())

    def test_a_failed_load_reaches_every_waiter(self, tmp_path: Path) -> None:
        (tmp_path / "bad.gguf").write_bytes(b"GGUF")

        async def main() -> None:
            llm = AsyncLLM(tmp_path / "bad.gguf")
            for use in (llm.load(), last(llm.generate("def ")), llm.__aenter__()):
                with pytest.raises(IntegrityError):
                    await use
            await llm.aclose()
            with pytest.raises(IntegrityError):
                async with AsyncLLM(tmp_path / "bad.gguf"):
                    pass

        run(main())

    def test_closing_while_it_loads(self) -> None:
        async def main() -> None:
            for delay in (0, 0.05, 0.2):
                llm = AsyncLLM(**OPTIONS)
                await asyncio.sleep(delay)
                async with asyncio.timeout(SOON):
                    await llm.aclose()
                with pytest.raises(EngineError):
                    await llm.load()

        run(main())
        assert_no_children()


class TestTheEnd:
    def test_a_killed_engine_reaches_every_waiter(self) -> None:
        async def main() -> None:
            async with AsyncLLM(max_num_seqs=2, **OPTIONS) as llm:
                requests = [asyncio.create_task(last(llm.generate("def ", FOR_EVER))) for _ in range(6)]
                streams = [await begun(llm)]
                psutil.Process(llm._engine.client().pid).send_signal(signal.SIGKILL)
                async with asyncio.timeout(FREE):
                    errors = await asyncio.gather(*requests, return_exceptions=True)
                    for error in errors:
                        assert isinstance(error, EngineDiedError)
                        assert "SIGKILL" in str(error)
                    with pytest.raises(EngineDiedError, match="SIGKILL"):
                        await last(streams[0])
                    with pytest.raises(EngineDiedError, match="SIGKILL"):
                        await last(llm.generate("def "))

        run(main())

    def test_use_after_close(self) -> None:
        async def main() -> None:
            llm = AsyncLLM(**OPTIONS)
            running = await begun(llm)
            await llm.aclose()
            await llm.aclose()
            with pytest.raises(EngineError, match="this LLM is closed"):
                await last(llm.generate("def "))
            with pytest.raises(EngineDiedError, match="was closed"):
                await last(running)

        run(main())
        assert_no_children()

    def test_forgotten_without_a_close(self) -> None:
        async def main() -> None:
            llm = AsyncLLM(**OPTIONS)
            await last(llm.generate("def ", SHORT))

        run(main())
        gc.collect()
        assert_no_children()

    def test_forgotten_while_it_loads(self) -> None:
        async def main() -> None:
            AsyncLLM(**OPTIONS)

        run(main())
        gc.collect()
        assert_no_children()

    def test_a_loop_that_is_closed_while_it_writes(self) -> None:
        """The reading thread finds nobody to tell; another loop can still use the engine."""

        async def first() -> None:
            loop.create_task(last(llm.generate("def ", FOR_EVER)))  # noqa: RUF006 - left behind
            await asyncio.sleep(0.5)

        llm = AsyncLLM(max_num_seqs=2, **OPTIONS)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(first())
        left_behind = asyncio.all_tasks(loop)
        loop.stop()
        loop.run_forever()
        assert len(left_behind) == 1

        async def second() -> None:
            assert await text(llm.generate("import ", WARM))

        run(second())
        for task in left_behind:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left_behind, return_exceptions=True))
        loop.close()
        run(llm.aclose())


def test_several_loops_share_one() -> None:
    llm, texts = AsyncLLM(**ONE_SLOT), []

    async def main() -> None:
        texts.append(await text(llm.generate("def ", WARM)))

    threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert len(texts) == 3
    assert len(set(texts)) == 1
    run(llm.aclose())


def test_bad_requests() -> None:
    async def main() -> None:
        with pytest.raises(NotFoundError):
            AsyncLLM("nothing.gguf")
        async with AsyncLLM(**ONE_SLOT) as llm:
            for bad in (
                lambda: llm.generate(5),  # type: ignore[arg-type]
                lambda: llm.generate("def ", {"nonsense": 1}),
                lambda: llm.generate("def ", request_id=5),  # type: ignore[arg-type]
                lambda: llm.generate("def ", n=0),
                lambda: llm.chat([]),
                lambda: llm.stream(None),  # type: ignore[arg-type]
            ):
                with pytest.raises(UsageError):
                    bad()
            with pytest.raises(UsageError, match="token ids must be from 0 to 4095"):
                await last(llm.generate([4096]))
            stream = await begun(llm, request_id="a")
            with pytest.raises(UsageError, match="there is a request 'a' already"):
                await last(llm.generate("def ", request_id="a"))
            await stream.aclose()
            await soon_free(llm)

    run(main())


def assert_no_children() -> None:
    """No engine process is left, soon at least."""
    assert all(is_gone(child) for child in psutil.Process().children() if is_engine(child))
    for engine in ENGINES:
        engine.wait(SOON)


def is_engine(child: psutil.Process) -> bool:
    """Servers of other tests have their engine processes below them."""
    try:
        return "specllama.worker.main" in child.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
