"""The ways of decoding that are compared: llama.cpp's plain, its drafts on a grid, its n-grams; specllama."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DRAFTS = [(n, 0.0) for n in (1, 2, 3, 5, 7, 11, 15)] + [(7, 0.8), (15, 0.8)]  # n_max, p_min
NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
SHORT = ["--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "15"]
_PERF = re.compile(r"eval time =\s*([\d.]+) ms /\s*(\d+) runs")
_SPEC = re.compile(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds")


@dataclass(frozen=True)
class Case:
    """What is decoded: files, prompt, how many tokens, how they are chosen."""

    target: Path
    draft: Path
    prompt: str
    n: int
    temperature: float
    seed: int
    n_threads: int


@dataclass(frozen=True)
class Point:
    """One way of decoding. kind: "plain", "draft", "ngram" (llama.cpp's) or "ours"."""

    name: str
    kind: str
    args: tuple[str, ...] = ()

    def rate(self, tools: Path, case: Case) -> float:
        """Decoded tokens per second behind the first one, by the program's own clock."""
        if self.kind == "ours":
            return _ours(case, self.args)
        common = ["-m", str(case.target), "-t", str(case.n_threads), "-c", "2048", "-n", str(case.n)]
        common += [
            "--temp",
            str(case.temperature),
            "--seed",
            str(case.seed),
            "--ignore-eos",
            "-p",
            case.prompt,
        ]
        if self.kind == "plain":  # the speculative tool does not run without drafts
            text = _run([tools / "llama-completion", *common, "--perf", "-no-cnv"])
            found = [(float(ms), int(n)) for ms, n in _PERF.findall(text)]
            ms, n = found[-1]
            return 1000 * n / ms
        draft = ["-md", str(case.draft), "-td", str(case.n_threads)] if self.kind == "draft" else []
        text = _run([tools / "llama-speculative-simple", *common, *draft, *self.args])
        match = _SPEC.search(text)
        if match is None:
            raise SystemExit(f"llama-speculative-simple printed no speed:\n{text[-2000:]}")
        return (int(match[1]) - 1) / float(match[2])


def points(draft: bool = True) -> list[Point]:
    """All that is compared; without a draft model the n-gram types and plain alone."""
    found = [Point("plain", "plain")]
    if draft:
        for n_max, p_min in DRAFTS:
            args = ("--spec-type", "draft-simple", "--spec-draft-n-max", str(n_max))
            args += ("--spec-draft-p-min", str(p_min))
            found.append(Point(f"n_max {n_max}" + (f", p_min {p_min}" if p_min else ""), "draft", args))
    found += [Point(name, "ngram", ("--spec-type", name)) for name in NGRAMS]
    found.append(Point("ngram-simple 4/15", "ngram", ("--spec-type", "ngram-simple", *SHORT)))
    ours = () if draft else ("-md", "none")
    return [*found, Point("specllama", "ours", ours), Point("specllama plain", "ours", ("--draft-max", "0"))]


def _ours(case: Case, args: tuple[str, ...]) -> float:
    command = [sys.executable, "-m", "specllama", "run", "--json", "--raw", "-m", str(case.target)]
    command += [] if "-md" in args else ["-md", str(case.draft)]
    command += [*args, "-t", str(case.n_threads), "-c", "2048", "-n", str(case.n), "--ignore-eos"]
    command += ["--temp", str(case.temperature), "-s", str(case.seed), "-p", case.prompt]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["decode_tps"])


def _run(command: list[object]) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise SystemExit(f"{Path(str(command[0])).name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr
