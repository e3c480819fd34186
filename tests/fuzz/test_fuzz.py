"""tests.fuzz: short campaigns with a fixed seed, every input that ever failed, and that failures are seen.

FUZZ_INPUTS=1000 makes a longer campaign, FUZZ_SEED another one.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fuzz.campaign import judged
from tests.fuzz.gguf_pieces import Entry, Pieces
from tests.fuzz.part import Part
from tests.fuzz.parts import table
from tests.fuzz.parts.headers import BUILT_IN, base
from tests.support.paths import ROOT

INPUTS, SEED = os.environ.get("FUZZ_INPUTS", "60"), os.environ.get("FUZZ_SEED", "1")
FEW = "6"  # inputs of each part in every run of the tests
PARTS = [name for name in table.PARTS if name != "http"]  # tests/server/test_fuzz.py has a server


def fuzz(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=3000, check=False)


def campaign(n: str, seconds: int, out: Path) -> None:
    done = fuzz(
        *("--inputs", n, "--seed", SEED, "--seconds", str(seconds)),
        *("--only", ",".join(PARTS), "--out", str(out)),
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, [r["part"] for r in results]) == (0, PARTS), done.stdout + done.stderr
    for result in results:
        assert result["inputs"] == int(n), result
        assert n == FEW or len(result["outcomes"]) > 1, f"all inputs of a part end alike: {result}"
    assert list(out.iterdir()) == []


def test_a_few_inputs_of_each_part_find_nothing(tmp_path: Path) -> None:
    campaign(FEW, 30 * len(PARTS), tmp_path)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_campaign_finds_nothing(tmp_path: Path) -> None:
    campaign(INPUTS, 3000 if "FUZZ_INPUTS" in os.environ else 30 * len(PARTS), tmp_path)


SCHEMA = {  # llguidance shortens it for a message in the middle of a character, and panics
    "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}},
    "$ref": {"é" * 40: "\r\n\r\n", "\ud800": 0.0, "\u202e": ["\U0001f600", True]},
}
EVER_FAILED = [
    ("grammars", b"s" + json.dumps(SCHEMA).encode()),
    ("protocol", b'["Cancel", ' + b"[" * 90_000),
    ("protocol", b'["Cancel", ' + b'{"a":' * 90_000),
    ("protocol", json.dumps(["Cancel", {"x" * 4000: 1}]).encode()),
    ("protocol", json.dumps(["x" * 4000, {}]).encode()),
]


@pytest.fixture(scope="module")
def parts() -> dict[str, Part]:
    made = {name: table.make(name, BUILT_IN) for name in {name for name, _ in EVER_FAILED}}
    for part in made.values():
        part.set_up()
    return made


@pytest.mark.parametrize(("name", "data"), EVER_FAILED, ids=[name for name, _ in EVER_FAILED])
def test_inputs_that_failed_once_do_not_fail_again(parts: dict[str, Part], name: str, data: bytes) -> None:
    found = judged(parts[name], data)
    assert found["reason"] == ""
    assert found["outcome"] == "refused"


def test_models_that_crashed_llama_cpp_are_refused(tmp_path: Path) -> None:
    model = base(BUILT_IN[0], True)
    epsilon = Entry(b"llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", -1e-8))
    experts = Entry(b"llama.expert_used_count", 4, struct.pack("<I", 64))
    scaling = Entry(b"llama.rope.scaling.type", 8, struct.pack("<Q", 1) + b"x")
    integers = [replace(t, kind=26) if t.name == b"blk.0.attn_v.weight" else t for t in model.tensors]
    files = []
    for changed in (
        *(replace(model, entries=(*_without(model, e.key), e)) for e in (epsilon, experts, scaling)),
        replace(model, tensors=tuple(integers)),
    ):
        files.append(tmp_path / f"{len(files)}.bin")
        files[-1].write_bytes(changed.bytes())
    done = fuzz("--only", "load", "--replay", *map(str, files))
    assert (done.returncode, done.stdout.count(": in order")) == (0, 4), done.stdout + done.stderr


def _without(model: Pieces, key: bytes) -> list[Entry]:
    return [entry for entry in model.entries if entry.key != key]


BROKEN = """
import json, os, time
from tests.fuzz import campaign

KINDS = (b"fine", b"raise", b"abort", b"sleep", b"exit", b"fill")

class Broken:
    name, seconds, n_bytes, batch = "broken", 0.3, 16 << 20, 4
    def set_up(self): pass
    def close(self): pass
    def make(self, rng): return b"x" * 50 + rng.choice(KINDS)
    def run(self, data):
        kind = data.decode().lstrip("x")
        if kind == "raise": raise KeyError(kind)
        if kind == "abort": os.abort()
        if kind == "sleep": time.sleep(60)
        if kind == "exit": os._exit(3)
        if kind == "fill": kind = str(len(b"1" * (32 << 20)))
        return kind

found = []
result = campaign.run(Broken(), 1, 60, 16, found.append)
failures = {f.reason.split(" at ")[0]: f.data.decode() for f in found}
print(json.dumps([result.n, dict(result.outcomes), failures]))
"""


def test_every_kind_of_failure_is_reported_and_the_campaign_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    n, outcomes, found = json.loads(done.stdout)
    # The allocator may add a MB or two, another number in each input.
    failures = {
        re.sub(r"^takes (3[2-9]|4\d) MB", "takes 32 MB", reason): text for reason, text in found.items()
    }
    assert n == 16
    assert list(outcomes) == ["fine"]
    assert failures["KeyError"] == "raise"  # made shorter
    reasons = ("KeyError", "crashes: SIGABRT", "hangs: no result", "exits with code 3", "takes 32 MB")
    for reason in reasons:
        assert any(known.startswith(reason) for known in failures), (reason, failures)
    slow = [known for known in failures if re.match(r"takes [0-9.]+ s", known)]  # possible on a busy machine
    assert len(failures) - len(slow) == len(reasons), failures


def test_wrong_arguments_are_one_line() -> None:
    done = fuzz("--only", "headers,nothing")
    assert done.returncode == 2
    assert "there is no part nothing" in done.stderr
