"""specllama serve against llama-server, without starting either: command lines, ratios, health."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from scripts.bench.server.programs import OURS, PEER_DRAFT, PEER_PLAIN, Files
from scripts.bench.server.table import healths, label, lines, medians, ratios
from scripts.figures import quantile
from scripts.health import HealthPoller
from tests.support.openai_server import openai_server

FILES = Files(Path("t.gguf"), Path("d.gguf"), 4, 2, 4096, Path("bin"))
RATES = {
    ("specllama", 1, 1): 30.0, ("specllama", 1, 2): 20.0, ("specllama", 8, 1): 50.0,
    ("specllama plain", 1, 1): 20.0, ("specllama plain", 1, 2): 20.0, ("specllama plain", 8, 1): 50.0,
    ("llama-server draft", 1, 1): 20.0, ("llama-server draft", 1, 2): 10.0,
    ("llama-server plain", 1, 1): 10.0,
}  # fmt: skip


def test_all_get_the_same_files_slots_and_threads() -> None:
    lines_ = [way.command(FILES, 7) for way in (OURS, PEER_DRAFT, PEER_PLAIN)]
    for line in lines_:
        given = dict(itertools.pairwise(line))
        assert (given["-m"], given["-c"], given["-np"], given["-t"]) == ("t.gguf", "4096", "4", "2")
        assert (given["--port"], given["--host"]) == ("7", "127.0.0.1")
    assert [line[line.index("-md") + 1] for line in lines_[:2]] == ["d.gguf", "d.gguf"]
    assert "-md" not in lines_[2]
    alone = Files(Path("t.gguf"), None, 4, 2, 4096, Path("bin"))
    assert OURS.command(alone, 7)[-2:] == ["-md", "none"]
    assert "--spec-type" not in PEER_DRAFT.command(alone, 7)


def test_ratios_are_of_the_same_run() -> None:
    found = {(one["concurrency"], one["ratio"]): one for one in ratios(RATES)}
    draft = found[1, "over llama-server with the draft"]
    assert (draft["median"], draft["low"], draft["high"], draft["runs"]) == (1.75, 1.5, 2.0, 2)
    assert found[1, "over llama-server without"]["median"] == 3
    assert found[1, "over its own plain decoding"]["median"] == 1.25
    assert found[1, "plain over llama-server without"]["runs"] == 1
    assert {c for c, _ in found if c == 8} == {8}
    assert (8, "over llama-server without") not in found
    rates = {(one["concurrency"], one["way"]): one["tps"] for one in medians(RATES)}
    assert rates[1, "specllama"] == 25


def test_labels() -> None:
    assert label("specllama", "plain") == "specllama plain"
    assert label("specllama", "as served") == label("specllama", "speculative") == "specllama"
    assert label("llama-server plain", "as served") == "llama-server plain"


def test_lines() -> None:
    found = {
        "medians": medians(RATES), "ratios": ratios(RATES),
        "health": healths({"specllama": [3.0, 5.0, None, 4.0], "other": [None]}),
        "overhead": {"http_ms": 21.5, "engine_ms": 21.25, "added_ms": 0.25, "added_mean_ms": 0.125},
    }  # fmt: skip
    text = "\n".join(lines(found))
    assert "/health of specllama: p99 4.0 ms, worst run 5.0 ms" in text
    assert "other" not in text
    assert "HTTP adds 0.250 ms" in text
    assert "same answers: 0.125 ms" in text
    assert "1.750 (1.500 - 2.000, 2 runs)" in text
    assert "HTTP" not in "\n".join(lines(found | {"overhead": None}))


def test_health_is_polled_from_another_process() -> None:
    with (
        openai_server() as one,
        HealthPoller("127.0.0.1", int(one.root.rpartition(":")[2]), 0.05) as health,
    ):
        while len(one.paths) < 3:
            time.sleep(0.02)
    assert len(health.replies) >= 2
    seconds = [reply.seconds for reply in health.replies]
    assert max(seconds) == pytest.approx(quantile(seconds, 0.99))
