"""What each sampling step costs: milliseconds of processor time of a choice, alone and behind a top-k of 40.

.venv/bin/python -m scripts.bench.samplers
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler

STEPS: Mapping[str, Mapping[str, Any]] = {
    "penalties": {"repeat_penalty": 1.1, "repeat_last_n": 8192},
    "dry": {"dry_multiplier": 0.8, "dry_penalty_last_n": 8192},
    "top_n_sigma": {"top_n_sigma": 1.0},
    "typ_p": {"typical_p": 0.9},
    "top_p": {"top_p": 0.95},
    "min_p": {"min_p": 0.05},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.1},
    "temperature": {"temperature": 0.8, "dynatemp_range": 0.5},
    "adaptive_p": {"adaptive_target": 0.3},
    "mirostat 1": {"mirostat": 1},
    "mirostat 2": {"mirostat": 2},
}
OFF: Mapping[str, Any] = {"top_p": 1.0, "min_p": 0.0, "temperature": 1.0}


def rows_like_a_model(n_vocab: int, n: int) -> list[np.ndarray]:
    """Rows of logits whose likeliest tokens stand out, of which some are nearly certain."""
    rng = np.random.default_rng(1)
    rows = []
    for i in range(n):
        row = rng.standard_normal(n_vocab).astype(np.float32) * 2
        row[rng.integers(0, n_vocab, 30)] += rng.uniform(4, 12 + i % 3 * 4, 30).astype(np.float32)
        rows.append(row)
    return rows


def milliseconds(params: SamplingParams, rows: list[np.ndarray], history: list[int]) -> float:
    """The median processor time of a choice."""
    sampler, times = KeyedSampler(params, 1, len(rows[0])), []
    for i in range(3 * len(rows)):
        started = time.thread_time()
        sampler.choose(rows[i % len(rows)], history)
        times.append(time.thread_time() - started)
    return statistics.median(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vocabularies", default="131072,262144", help="numbers of tokens")
    sizes = [int(text) for text in parser.parse_args().vocabularies.split(",")]
    print("| step | " + " | ".join(f"{n}, alone | behind top_k" for n in sizes) + " |")
    print("|---" * (1 + 2 * len(sizes)) + "|")
    history = np.random.default_rng(2).integers(0, 4000, 8192).tolist()
    rows = {n: rows_like_a_model(n, 9) for n in sizes}
    for step, given in STEPS.items():
        cells = []
        for n in sizes:
            for before in ([], ["top_k"]):
                steps = [*before, *([] if "mirostat" in step else [step])]
                params = SamplingParams(**{**OFF, **given}, top_k=40, samplers=steps)
                cells.append(f"{milliseconds(params, rows[n], history):.2f}")
                if "mirostat" in step:  # it runs without top_k
                    cells.append("")
                    break
        print(f"| {step} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
