"""Real engines under a limit of memory that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from specllama.client import protocol
from specllama.config.load import LoadSettings, ModelSettings
from specllama.errors import ResourceError, SpecllamaError
from specllama.models.resolve import Library
from specllama.server.eviction import prepare_load
from specllama.server.memory import FreeMemory, MemoryLedger
from specllama.server.models import ModelPool
from specllama.server.settings import ServerSettings
from specllama.server.supervisor import Supervisor
from tests.support import tinygguf
from tests.support.hub_cache import put

ONE, OTHER = "me/one:F32", "me/other:F32"
PLENTY = 1 << 40


class Limit:
    """Stands for the memory of the machine."""

    def __init__(self) -> None:
        self.bytes = PLENTY

    def __call__(self) -> int:
        return self.bytes


def pool(home: Path, limit: Limit, lines: list[str], n_ctx: int) -> ModelPool:
    """Two models of the same size; the first one is the default. n_ctx: of the other one."""
    environ = {"HF_HUB_CACHE": str(home / "hub"), "SPECLLAMA_DATA": str(home / "data")}
    paths = []
    for seed, name in enumerate(("one", "other")):
        content = tinygguf.llama(home / f"{name}.gguf", seed=seed).read_bytes()
        paths.append(put(home / "hub", f"me/{name}", f"{name}-F32.gguf", content))
    one = ModelSettings(path=str(paths[0]), n_ctx=512, n_threads=1)
    load = LoadSettings(target=one, drafters=(), calibrate=False)
    others = LoadSettings(
        target=ModelSettings(path="", n_ctx=n_ctx, n_threads=1), drafters=(), calibrate=False
    )
    settings = ServerSettings(load=load, others=others, names=(ONE,))
    make = partial(Supervisor, load, lines.append)
    return ModelPool(settings, lines.append, make, Library(environ=environ), ledger=MemoryLedger(limit))


async def ask(models: ModelPool, name: str) -> int:
    """The number of tokens of a text."""
    await models.look_up(name)
    tokenized = await models.service(name).supervisor.query(
        lambda id_: protocol.Tokenize(id_, "zip"), protocol.Tokenized
    )
    return len(tokenized.ids)


def in_memory(models: ModelPool) -> set[str]:
    return {service.name for service in models.services if service.lease.state == "loaded"}


def run(home: Path, test: Callable[[ModelPool, Limit, list[str]], Awaitable[None]], n_ctx: int = 512) -> None:
    async def main() -> None:
        limit, lines = Limit(), list[str]()
        models = pool(home, limit, lines, n_ctx)
        running = asyncio.create_task(models.run())
        try:
            async with asyncio.timeout(60):
                await models.started()
                await test(models, limit, lines)
        finally:
            running.cancel()
            await asyncio.wait((running,))

    asyncio.run(main())


def test_models_stay_loaded_together_as_far_as_memory_allows(tmp_path: Path) -> None:
    async def test(models: ModelPool, limit: Limit, lines: list[str]) -> None:
        needed = prepare_load(models.settings.load, None).plan(FreeMemory(PLENTY)).host
        limit.bytes = needed - (1 << 20)
        assert await ask(models, OTHER) > 0
        assert in_memory(models) == {OTHER}
        assert any(f"{ONE} is unloaded, to make room for {OTHER}" in line for line in lines)
        limit.bytes = 3 * needed
        assert await ask(models, ONE) > 0
        assert in_memory(models) == {ONE, OTHER}
        assert models.current.name == ONE

    run(tmp_path, test)


def test_a_model_that_never_fits_is_an_error_and_evicts_nothing(tmp_path: Path) -> None:
    async def test(models: ModelPool, limit: Limit, lines: list[str]) -> None:
        limit.bytes = 1000
        errors: list[SpecllamaError] = []
        for _ in range(2):
            try:
                await ask(models, OTHER)
            except SpecllamaError as error:
                errors.append(error)
        assert [type(error) for error in errors] == [ResourceError] * 2
        assert "not enough memory for " in errors[0].message
        assert " GB available" in errors[0].message
        assert errors[0].http_status == 503
        assert in_memory(models) == {ONE}
        assert await ask(models, ONE) > 0
        assert sum("cannot be loaded" in line for line in lines) == 2

    run(tmp_path, test, n_ctx=1 << 18)
