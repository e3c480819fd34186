"""GGUF headers: what `pair-check` reads, and what the engine loads."""

from __future__ import annotations

import functools
import json
import os
import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import GGUFError, UsageError
from specllama.gguf.header import Header, read_header, read_source
from tests.fuzz import gguf_pieces
from tests.fuzz.gguf_pieces import Entry, Pieces
from tests.support.ggufbytes import BytesSource

BUILT_IN = (EMBEDDED_TARGET, EMBEDDED_DRAFT)
_FULL = 0.1  # share of inputs with the whole vocabulary
_PAGE = 4096
REFUSALS = ("GGUFError", "IntegrityError", "UsageError", "ResourceError", "IncompatiblePairError")


class Headers:
    """`pair-check`: reads a header, checks it, and compares it with one that is in order."""

    name, seconds, n_bytes, batch = "headers", 2.0, 300 << 20, 500

    def __init__(self, files: Sequence[Path] = BUILT_IN) -> None:
        self._files = list(files)

    def set_up(self) -> None:
        import specllama.cli.pair_check
        import specllama.pair.check  # noqa: F401

        for file in self._files:  # before processes are forked
            base(file, True)
            base(file, False)
        _plain(self._files[0])

    def make(self, rng: random.Random) -> bytes:
        pieces = gguf_pieces.mutated(rng, base(rng.choice(self._files), rng.random() >= _FULL))
        data = pieces.bytes()
        if rng.random() < 0.05:
            data = data[: rng.randrange(len(data))]
        return data + (b"\0" if rng.random() < 0.1 else bytes(pieces.n_data + _PAGE))

    def run(self, data: bytes) -> str:
        from specllama.cli import pair_check
        from specllama.cli import pair_check as pair_report
        from specllama.gguf.check import check_tokenizer
        from specllama.heads.check import check_model
        from specllama.pair.check import check_pair

        source = BytesSource(data)
        try:
            header = read_source(source)
            (check_model if header.tensors or not len(header.tokens) else check_tokenizer)(header)
            other = _plain(self._files[0])
            verdict = check_pair(header, other)
            lines = list(pair_check._lines(header, other, verdict, verdict.ok, 80))
        except (GGUFError, UsageError) as error:
            assert error.hint
            assert error.message.isprintable(), error.message[:500]
            return "refused"
        assert all(line.isprintable() for line in lines)
        json.dumps(pair_report.report(header, other, verdict, verdict.ok, None))
        return verdict.verdict

    def close(self) -> None:
        pass


class Load(Headers):
    """The engine: loads the model that a header describes, with weights of zeros, and generates with it."""

    name, seconds, n_bytes, batch = "load", 10.0, 1 << 30, 1

    def set_up(self) -> None:
        from specllama.llama import library  # noqa: F401
        from specllama.worker import engine_core  # noqa: F401

        super().set_up()

    def make(self, rng: random.Random) -> bytes:
        return gguf_pieces.mutated(rng, base(rng.choice(self._files), rng.random() >= _FULL / 4)).bytes()

    def run(self, data: bytes) -> str:
        from specllama.client import protocol as m
        from specllama.config.load import LoadSettings, ModelSettings
        from specllama.config.store import Store
        from specllama.worker.engine_core import EngineCore

        with tempfile.TemporaryDirectory(prefix="specllama-fuzz-") as folder, ExitStack() as closing:
            path = Path(folder, "m.gguf")
            path.write_bytes(data)
            os.truncate(path, len(data) + (16 << 20) + len(data) * 16)
            messages: list[m.Message] = []
            core = EngineCore(messages.append, Store(Path(folder, "store")))
            closing.callback(core.shut_down)  # nothing is written into a folder that is removed
            target = ModelSettings(path=str(path), n_threads=1, n_ctx=128)
            core.handle(m.Load(LoadSettings(target=target, drafters=())))
            for message in messages:
                if isinstance(message, m.Failed):
                    kind = str(message.error["kind"])
                    assert kind in REFUSALS, message.error
                    return kind
            assert isinstance(messages[-1], m.Ready)
            texts = ["def read(x):\n  2 é\U0001f600\0", "<s> <|im_end|>" + "a" * 40]
            for i, text in enumerate(texts):
                core.handle(m.Generate(i, m.TextInput(text), {"max_tokens": 3, "logprobs": 2}))
            core.handle(m.Tokenize(8, "x\ny"))
            core.handle(m.Detokenize(9, [0, 1, 2]))
            core.handle(m.Render(10, m.ChatInput([{"role": "user", "content": "x"}])))
            while core.busy:
                core.step()
            ends = {type(message).__name__ for message in messages if isinstance(message, (m.Done, m.Failed))}
            return "+".join(sorted(ends))


@functools.cache
def entries_of(path: Path) -> tuple[Entry, ...]:
    return gguf_pieces.read(path)


@functools.cache
def base(path: Path, small: bool) -> Pieces:
    return gguf_pieces.runnable(entries_of(path), small)


@functools.cache
def _plain(path: Path) -> Header:
    return read_header(path)
