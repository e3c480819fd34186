"""Structured output: whether answers are valid and the same with and without drafts, and the speed-up.

usage: python -m scripts.bench.structured [-m TARGET -md DRAFT] [--runs N] [-t THREADS]

Twenty schemas at temperature 0 and 0.8, plain decoding and the default policy in turn. Needs jsonschema, a
development dependency. Run nothing else on the machine.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass

import jsonschema

from scripts import cli
from scripts.bench.measuring.json_schemas import SCHEMAS
from scripts.figures import mean
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.client.stream import fold
from specllama.config.load import LoadSettings, ModelSettings
from specllama.core.stats import RunStats
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET

CASES = [(0.0, 1), (0.8, 1), (0.8, 2)]  # temperature, seed


@dataclass
class Answer:
    text: str
    reason: str
    stats: RunStats


def ask(client: EngineClient, name: str, temperature: float, seed: int, speculate: bool) -> Answer:
    """An answer that follows the schema `name`."""
    params = {
        "temperature": temperature, "seed": seed, "max_tokens": 400, "json_schema": json.dumps(SCHEMAS[name]),
    }  # fmt: skip
    messages = [{"role": "user", "content": f"Write one {name} about shutil.copytree as JSON."}]
    request = protocol.Generate(client.next_id(), protocol.ChatInput(messages), params, speculate=speculate)
    result = fold(client.generate(request))
    return Answer(result.text, result.finish_reason, result.stats)


def valid(name: str, answer: Answer) -> bool:
    """Whether the answer is complete and fulfils the schema."""
    try:
        jsonschema.validate(json.loads(answer.text), SCHEMAS[name])
    except (ValueError, jsonschema.ValidationError):
        return False
    return answer.reason == "stop"


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("-m", "--model", default=str(EMBEDDED_TARGET))
    parser.add_argument("-md", "--draft", default=str(EMBEDDED_DRAFT))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("-t", "--threads", type=int, default=2)
    args = parser.parse_args()

    def model(path: str) -> ModelSettings:
        return ModelSettings(path=path, n_ctx=2048, n_threads=args.threads)

    n = n_valid = n_same = 0
    ratios: dict[str, list[float]] = {}
    total: dict[str, int] = dict.fromkeys(("n_predict", "n_forced_accept", "n_accept"), 0)
    with EngineClient() as client:
        client.load(LoadSettings(target=model(args.model), draft=model(args.draft), memory=False))
        for _ in range(args.runs):
            for name in SCHEMAS:
                for temperature, seed in CASES:
                    drafted, plain = (ask(client, name, temperature, seed, s) for s in (True, False))
                    n, n_same = n + 1, n_same + (drafted.text == plain.text)
                    n_valid += valid(name, drafted) and valid(name, plain)
                    for key in total:
                        total[key] += getattr(drafted.stats, key)
                    if drafted.stats.decode_tps and plain.stats.decode_tps:
                        ratio = drafted.stats.decode_tps / plain.stats.decode_tps
                        ratios.setdefault(name, []).append(ratio)
    report(n, n_valid, n_same, total, ratios)


def report(n: int, n_valid: int, n_same: int, total: dict[str, int], ratios: dict[str, list[float]]) -> None:
    print(f"{n} pairs of answers: valid {n_valid}, same text {n_same}")
    free = total["n_forced_accept"] / total["n_predict"]
    guessed = total["n_accept"] / total["n_predict"]
    print(
        f"tokens: {total['n_predict']}, forced by the grammar {free:.1%}, "
        f"accepted from other drafters {guessed:.1%}"
    )
    medians = {name: statistics.median(found) for name, found in ratios.items()}
    for name, ratio in sorted(medians.items(), key=lambda item: item[1]):
        print(f"  {name:18} {ratio:5.2f} x plain")
    print(f"geometric mean {mean(medians.values()):.2f}, worst {min(medians.values()):.2f}")


if __name__ == "__main__":
    main()
