"""Time to first token of a second turn, after a first turn of one token and of many.

usage: python -m scripts.bench.turns [-m TARGET] [--tokens 1500] [--runs N] [-t THREADS]

The second turn evaluates only its new tokens, so its time should not depend on the length of the first one,
except by attention, which reads the whole cache. That part is measured separately: the same rows decoded at
the same position of the same cache. Run nothing else on the machine.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from scripts import cli
from specllama.client import protocol
from specllama.client.stream import fold
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.core.interfaces import BatchRow
from specllama.core.stats import RunStats
from specllama.data import EMBEDDED_TARGET
from specllama.worker.engine_core import EngineCore

QUESTION = {"role": "user", "content": "And what does shutil.copytree do with symbolic links?"}


class Chat:
    """Requests to an engine in this process."""

    def __init__(self, path: str, n_threads: int) -> None:
        self.messages: list[protocol.Message] = []
        self.core = EngineCore(self.messages.append, Store(Path(tempfile.mkdtemp())))
        target = ModelSettings(path=path, n_ctx=2048, n_threads=n_threads)
        self.core.handle(protocol.Load(LoadSettings(target=target, drafters=())))
        self.next_id = 0

    def ask(self, messages: list[dict[str, str]], follows: int | None) -> tuple[int, str, RunStats]:
        """The id of the request, its answer and its statistics."""
        self.next_id += 1
        self.messages.clear()
        params = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
        chat = protocol.ChatInput(messages, follows=follows)
        self.core.handle(protocol.Generate(self.next_id, chat, params))
        while self.core.busy:
            self.core.step()
        done = self.messages[-1]
        if not isinstance(done, protocol.Done):
            raise SystemExit(f"no answer: {done}")
        return self.next_id, fold(self.messages).text, done.stats

    def decode_seconds(self, ids: list[int], n_past: int) -> float:
        """Seconds of a decode of `ids` after n_past ids in the cache, argmax included."""
        context = self.core.loaded.context  # type: ignore[union-attr]
        context.truncate(0, n_past)
        rows = [BatchRow(t, n_past + i, 0, i == len(ids) - 1) for i, t in enumerate(ids)]
        started = time.perf_counter()
        int(context.decode(rows)[0].argmax())
        return time.perf_counter() - started


def second_turn(chat: Chat, n_words: int) -> tuple[float, float, int, int]:
    """Seconds to the first token of the second turn, seconds of its decode, ids evaluated, ids kept."""
    first = [{"role": "user", "content": " ".join(["copy"] * n_words)}]
    id_, text, _ = chat.ask(first, None)
    second = [*first, {"role": "assistant", "content": text}, QUESTION]
    _, _, stats = chat.ask(second, id_)
    kept, n = stats.n_reused, stats.n_prompt
    slot = chat.core.engine.slots[0]  # type: ignore[union-attr]
    decode = min(chat.decode_seconds(slot.ids[kept:n], kept) for _ in range(3))
    slot.ids = []
    chat.core.loaded.context.truncate(0, 0)  # type: ignore[union-attr]
    return stats.ttft_seconds, decode, n - kept, kept


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("-m", "--model", default=str(EMBEDDED_TARGET))
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("-t", "--threads", type=int, default=2)
    args = parser.parse_args()
    chat = Chat(args.model, args.threads)
    second_turn(chat, 1)
    found: dict[int, list[tuple[float, float, int, int]]] = {1: [], args.tokens: []}
    for _ in range(args.runs):
        for n in found:
            found[n].append(second_turn(chat, n))
    medians = {}
    for n, rows in found.items():
        ttft, decode = (statistics.median(r[i] for r in rows) for i in (0, 1))
        medians[n] = ttft, decode
        print(
            f"first turn of {n} words: {rows[0][3]} ids kept, {rows[0][2]} evaluated; first token after "
            f"{1000 * ttft:.2f} ms, of these {1000 * decode:.2f} ms are the decode"
        )
    (short, short_decode), (long, long_decode) = medians[1], medians[args.tokens]
    growth = long_decode - short_decode
    print(f"ratio {long / short:.2f}; without the decode's growth of {1000 * growth:.2f} ms: ", end="")
    print(f"{(long - growth) / short:.2f}")


if __name__ == "__main__":
    main()
