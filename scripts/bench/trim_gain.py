"""How much faster texts are written with a trimmed draft or head than with the whole one.

usage: python -m scripts.bench.trim_gain --out DIR [-m TARGET] [-md DRAFT] [--keep 1024] [--temp 0,0.8]
       python -m scripts.bench.trim_gain --out DIR -m TARGET -md DRAFT --keep 1024 --texts FILE

The draft and its trimmed copy draft for two engines with the same target, which answer the prompts of
`specllama bench` in turns: whole and trimmed, then trimmed and whole. Neither chooses its tokens by these
prompts; --texts are those that the copy is trimmed for. A gain is the time that the whole draft takes for a
text over that of the copy, the geometric mean over texts, with a 95 % interval. The texts are compared:
they must be equal. Run nothing else on the machine, or count processor time with --cpu and one thread.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

from scripts import cli
from specllama.bench.runner import WORKLOADS
from specllama.client import protocol
from specllama.client.tune_messages import Trim, Trimmed
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.core.stats import RunStats
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import SpecllamaError
from specllama.worker.engine_core import EngineCore
from specllama.worker.trim import trim

Message = TypeVar("Message")
WARM_UP = 2  # prompts that count for nothing: the engines learn their costs


class Text(NamedTuple):
    """A text of one engine. seconds: of a token, without the first one."""

    ids: tuple[int, ...]
    seconds: float
    stats: RunStats


@dataclass
class Pairs:
    """The texts of both engines at a temperature, pair by pair."""

    whole: list[Text] = field(default_factory=list)
    trimmed: list[Text] = field(default_factory=list)

    def gain(self) -> tuple[float, float, float]:
        """How many times as fast the copy is, and the ends of the 95 % interval."""
        logs = [math.log(a.seconds / b.seconds) for a, b in zip(self.whole, self.trimmed, strict=True)]
        mean = statistics.mean(logs)
        error = 2 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
        return math.exp(mean), math.exp(mean - error), math.exp(mean + error)


def accepted(texts: Sequence[Text]) -> str:
    """Tokens of the draft that were right, and tokens a round."""
    names = ("model", "head")
    drafted = sum(text.stats.drafted_by.get(name, 0) for text in texts for name in names)
    rounds = sum(text.stats.rounds for text in texts)
    n_accept, n_drafted = (sum(getattr(t.stats, f"n_{k}") for t in texts) for k in ("accept", "drafted"))
    tokens = sum(len(text.ids) for text in texts)
    share = 100 * n_accept / max(1, n_drafted)
    return f"{drafted} drafted by it, {share:.1f} % of all accepted, {tokens / max(1, rounds):.2f} a round"


class Pair:
    """A target with a draft in this process, so that it does nothing while the other pair writes."""

    def __init__(self, a: argparse.Namespace, draft: Path, store: Store) -> None:
        self.messages: list[protocol.Message] = []
        self.core, self._next_id, self._cpu = EngineCore(self.messages.append, store), 0, a.cpu
        target, other = (
            ModelSettings(path=str(path), n_ctx=2048, n_threads=a.threads) for path in (a.target, draft)
        )
        load = LoadSettings(target=target, draft=other, draft_max=a.draft_max, memory=False)
        self.core.handle(protocol.Load(load))
        self._last(protocol.Ready)

    def write(self, prompt: str, params: dict[str, Any]) -> Text:
        """A text."""
        self._next_id += 1
        self.messages.clear()
        messages = [{"role": "user", "content": prompt}]
        loaded = self.core.loaded
        assert loaded is not None
        chats = loaded.header.chat_template is not None
        asked = protocol.ChatInput(messages) if chats else protocol.TextInput(prompt)
        self.core.handle(protocol.Generate(self._next_id, asked, params))
        began = None
        while self.core.busy:
            self.core.step()
            if began is None and any(isinstance(m, protocol.Tokens) for m in self.messages):
                began = time.process_time()  # after the first token
        used = time.process_time() - (began or 0.0)
        stats = self._last(protocol.Done).stats
        seconds = used if self._cpu else stats.decode_seconds
        items = (item for m in self.messages if isinstance(m, protocol.Tokens) for item in m.items)
        ids = tuple(token for item in items for token in item.ids)
        return Text(ids, seconds / max(1, stats.n_predict - 1), stats)

    def _last(self, kind: type[Message]) -> Message:
        last = self.messages[-1]
        if not isinstance(last, kind):
            raise SystemExit(f"the engine says {last}")
        return last


def measure(a: argparse.Namespace, temperature: float, engines: Sequence[Pair]) -> Pairs:
    """The texts of both engines in turns."""
    found = Pairs()
    into = (found.whole, found.trimmed)
    prompts = list(prompts_of(a.prompts))
    for i, prompt in enumerate([*prompts[:WARM_UP], *prompts]):
        params = {"temperature": temperature, "max_tokens": a.tokens, "seed": i, "ignore_eos": True}
        texts = {which: engines[which].write(prompt, params) for which in ((0, 1) if i % 2 else (1, 0))}
        if texts[0].ids != texts[1].ids:
            raise SystemExit(f"the texts of {prompt[:40]!r} differ")
        for which, text in texts.items() if i >= WARM_UP else ():
            into[which].append(text)
    return found


def prompts_of(n: int) -> Iterator[str]:
    """The first n prompts of each workload of `specllama bench`, workload by workload in turns."""
    for group in zip_longest(*(prompts[:n] for prompts in WORKLOADS.values())):
        yield from filter(None, group)


def trimmed_copy(a: argparse.Namespace) -> tuple[Path, Trimmed]:
    """The trimmed copy, written again, and what it has."""
    out = a.out / f"{a.draft.stem}-{a.keep}.gguf"
    texts = [(str(path), path.read_text("utf-8")) for path in a.texts]
    request = Trim(str(a.draft), str(out), f"{out}.tmp", keep=a.keep, texts=texts, type=a.type)
    return out, trim(request, lambda _message: None)


def main() -> None:
    p = cli.parser(__doc__)
    p.add_argument("--out", type=cli.folder, required=True, metavar="DIR", help="folder for the copy")
    p.add_argument("-m", dest="target", type=Path, default=EMBEDDED_TARGET, metavar="GGUF")
    p.add_argument("-md", dest="draft", type=Path, default=EMBEDDED_DRAFT, metavar="GGUF")
    p.add_argument("--keep", type=cli.whole(1), default=1024, metavar="N", help="tokens of the copy")
    p.add_argument("--texts", type=Path, action="append", default=[], metavar="FILE")
    p.add_argument("--type", default="", help="of the copy's output matrix")
    p.add_argument("--temp", default="0,0.8", metavar="T,T")
    p.add_argument("--prompts", type=cli.whole(1), default=4, metavar="N", help="of each workload")
    p.add_argument("--tokens", type=cli.whole(2), default=96, metavar="N", help="of a text")
    p.add_argument("--draft-max", type=int, metavar="N", help="a fixed length in place of auto")
    p.add_argument("--threads", type=cli.threads, default=2, metavar="N")
    p.add_argument("--cpu", action="store_true", help="count processor time, for --threads 1")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    path, found = trimmed_copy(a)
    print(
        f"{found.n_kept} of {found.n_vocab} tokens; a step reads {found.step_bytes / 1e6:.2f} MB instead of "
        f"{found.source_step_bytes / 1e6:.2f}", flush=True,
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        store = Store(Path(folder))
        engines = [Pair(a, draft, store) for draft in (a.draft, path)]
        for temperature in (float(t) for t in a.temp.split(",")):
            texts = measure(a, temperature, engines)
            gain, low, high = texts.gain()
            print(f"temperature {temperature:g}: {gain:.3f} x ({low:.3f} to {high:.3f}), ", end="")
            print(f"{len(texts.whole)} texts")
            print(f"  whole:   {accepted(texts.whole)}")
            print(f"  trimmed: {accepted(texts.trimmed)}", flush=True)
        for engine in engines:
            engine.core.shut_down()


if __name__ == "__main__":
    cli.run(main, OSError, SpecllamaError, ValueError)
