"""The ways of decoding to compare: llama.cpp plain, with drafts on a grid, with n-grams; specllama."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CHATML = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"  # the template of the embedded pair
DRAFTS = [(n, 0.0) for n in (1, 2, 3, 5, 7, 11, 15)] + [(7, 0.8), (15, 0.8)]  # n_max, p_min
HEAD_DRAFTS = [(n, 0.0) for n in range(1, 8)]
SIMPLE, HEADS = (
    "draft-simple",
    ("draft-eagle3", "draft-mtp"),
)  # what llama.cpp calls drafts by a model, a head
SHORT_DRAFTS = [(n, 0.0) for n in (1, 3, 7, 15)] + [(15, 0.8)]
NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
SHORT_NGRAMS = ("ngram-mod", "ngram-map-k")
OURS, OUR_PLAIN, PLAIN = "specllama", "specllama plain", "plain"
TRIES = 8
SMALL = ["--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "15"]
_EVAL = re.compile(r" eval time =\s*([\d.]+) ms /\s*(\d+) runs")
_SAMPLING = re.compile(r"sampling time =\s*([\d.]+) ms")
_SPEC = re.compile(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds")
_PROMPT = re.compile(r"prompt eval time =\s*([\d.]+) ms")
_ENCODED = re.compile(r"encoded\s+\d+ tokens in\s+([\d.]+) seconds")


@dataclass(frozen=True)
class Case:
    """A request with its files and settings. n: tokens. grammar: a file with a grammar of the only text that
    may be written; llama.cpp's tools end with it.
    """

    target: Path
    draft: Path | None
    prompt: str
    n: int
    temperature: float
    seed: int
    n_threads: int
    n_ctx: int = 2048
    grammar: Path | None = None


@dataclass(frozen=True)
class Measured:
    """A run of a program, timed by its own clock.

    n: requested tokens that were decoded in `seconds`, of which `sampling` were spent on sampling, if the
    program reports it. before: seconds of the prompt, in some programs including the draft model's.
    text: what it printed.
    """

    n: int
    seconds: float
    before: float
    sampling: float = 0.0
    text: str = ""

    @property
    def rate(self) -> float:
        """Decoded tokens per second."""
        return self.n / self.seconds

    @property
    def whole(self) -> float:
        """Decoded tokens per second of the time of prompt and answer."""
        return self.n / (self.before + self.seconds)


@dataclass(frozen=True)
class Point:
    """A way of decoding. kind: "plain", "draft", "ngram" (of llama.cpp) or "ours"."""

    name: str
    kind: str
    args: tuple[str, ...] = ()

    @property
    def drafts(self) -> bool:
        """Whether it uses the draft model, if there is one."""
        return self.kind == "draft" or (self.kind == "ours" and self.name != OUR_PLAIN)

    def run(self, tools: Path, case: Case) -> Measured:
        """Runs the program on the case."""
        if self.kind == "ours":
            return _ours(case, self.args)
        common = ["-m", str(case.target), "-t", str(case.n_threads), "-c", str(case.n_ctx), "-n", str(case.n)]
        common += ["--temp", str(case.temperature), "--seed", str(case.seed), "-p", case.prompt]
        common += ["--ignore-eos"] if case.grammar is None else ["--grammar-file", str(case.grammar)]
        if self.kind == "plain":  # the speculative tool does not run without drafts
            return _plain(tools, common, case.grammar is not None)
        draft = ["-md", str(case.draft), "-td", str(case.n_threads)] if self.kind == "draft" else []
        command = [tools / "llama-speculative-simple", *common, *draft, *self.args]
        text, (n, seconds), before, sampling = _measured(command, _SPEC, _ENCODED)
        # Its clock starts before the decode of the last prompt token, so it includes all tokens. It checks -n
        # between rounds only: after an accepted draft it may write more than n tokens.
        return Measured(min(int(n), case.n), float(seconds), before, sampling, text)


def grid(draft: bool = True, short: bool = False, spec_type: str = SIMPLE) -> list[Point]:
    """All points; without a draft model only the n-gram types and plain decoding, with a head only the drafts
    of the head.
    """
    found, head = [Point(PLAIN, "plain")], spec_type in HEADS
    drafts = HEAD_DRAFTS if head else SHORT_DRAFTS if short else DRAFTS
    for n_max, p_min in drafts if draft else ():
        args = ("--spec-type", spec_type, "--spec-draft-n-max", str(n_max))
        args += ("--spec-draft-p-min", str(p_min))
        found.append(Point(f"n_max {n_max}" + (f", p_min {p_min}" if p_min else ""), "draft", args))
    found += [] if head else ngrams(short)
    ours = () if draft else ("-md", "none")
    return [*found, Point(OURS, "ours", ours), Point(OUR_PLAIN, "ours", ("--draft-max", "0"))]


def ngrams(short: bool = False) -> list[Point]:
    """llama.cpp's n-gram types, and the simple one with sizes for short texts."""
    names = SHORT_NGRAMS if short else NGRAMS
    found = [Point(name, "ngram", ("--spec-type", name)) for name in names]
    return [*found, Point("ngram-simple 4/15", "ngram", ("--spec-type", "ngram-simple", *SMALL))]


def literal(ids: Sequence[int]) -> str:
    """A GBNF grammar of exactly these tokens. (A grammar of their text admits other tokens that spell it; a
    model that would write something else then needs twice as many, which no draft contains.)
    """
    return "root ::= " + " ".join(f"<[{i}]>" for i in ids) + "\n"


def _plain(tools: Path, common: Sequence[str], include_sampling: bool) -> Measured:
    """include_sampling: count the sampling time, as the speculative tool does."""
    command = [tools / "llama-completion", *common, "--perf", "-no-cnv", "--no-display-prompt"]
    text, (ms, n), before, sampling = _measured(command, _EVAL, _PROMPT)
    sampling = sampling if include_sampling else 0.0
    return Measured(int(n), float(ms) / 1000 + sampling, before / 1000, sampling, text)


def _measured(
    command: Sequence[object], figures: re.Pattern[str], prompt: re.Pattern[str]
) -> tuple[str, tuple[str, str], float, float]:
    """(text, figures, time of the prompt, seconds of sampling) of a run of llama.cpp's tool.

    A thread writes its log and does not always finish before the process ends; such a run is repeated.
    """
    for _ in range(TRIES):
        text, log = _run(command)
        found, before, sampling = (p.findall(text + log) for p in (figures, prompt, _SAMPLING))
        if found and before and sampling:
            return text, found[-1], float(before[-1]), float(sampling[-1]) / 1000
    raise SystemExit(f"{Path(str(command[0])).name} printed no times:\n{(text + log)[-2000:]}")


def _ours(case: Case, args: tuple[str, ...]) -> Measured:
    command = [sys.executable, "-m", "specllama", "run", "--json", "--raw", "-m", str(case.target)]
    command += [] if "-md" in args or case.draft is None else ["-md", str(case.draft)]
    command += [*args, "-t", str(case.n_threads), "-c", str(case.n_ctx), "-n", str(case.n), "--ignore-eos"]
    command += ["--temp", str(case.temperature), "-s", str(case.seed), "-p", case.prompt]
    found = json.loads(_run(command)[0])
    n = found["n_predict"] - 1  # the prompt gives the first
    before, sampling = found["ttft_ms"] / 1000, found["time"]["sampling"]
    return Measured(n, n / found["decode_tps"], before, sampling, found["text"])


def _run(command: Sequence[object]) -> tuple[str, str]:
    """The stdout and stderr of a program. Ends the script if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise SystemExit(f"{Path(str(command[0])).name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout, done.stderr
