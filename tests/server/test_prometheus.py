"""What a real Prometheus makes of the metrics, and of the dashboard's queries."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.prometheus import NotHereError, Programs, Prometheus, programs, scraping
from tests.support.serving import QUESTION, Server

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"
ALIAS_LINT = "metric names should not contain ':'"  # that is how vLLM spells them


@pytest.fixture(scope="module")
def tools() -> Programs:
    try:
        return programs()
    except NotHereError as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, list[dict[str, Any]]]]:
    """A server of its own, and all that it has answered."""
    with Server(tmp_path_factory.mktemp("scraped"), "--draft-max", "4") as one:
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        answers = [
            one.complete(max_tokens=80, seed=1, temperature=0, ignore_eos=True).json,
            one.complete(["def read(", "import "], n=2, max_tokens=20, seed=2).json,
            one.chat(QUESTION, max_tokens=30, **asked).events[-1],
            one.chat(QUESTION, max_tokens=30, **asked).events[-1],
            one.chat(QUESTION, json_schema={"enum": ["a long text that nobody has to guess"]}).json,
        ]
        assert one.chat(QUESTION, temperature=-1).status == 400
        yield one, answers


@pytest.fixture(scope="module")
def prometheus(
    tools: Programs,
    answered: tuple[Server, list[dict[str, Any]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Prometheus]:
    """One that has seen these answers come and go."""
    one, answers = answered
    with scraping(tools, f"{one.host}:{one.port}", tmp_path_factory.mktemp("prom") / "home") as running:
        running.until("specllama_texts_total", 8)
        again = one.complete(max_tokens=80, seed=3, ignore_eos=True, n=2)
        answers.append(again.json)
        answers.append(one.complete(max_tokens=20, speculation={"enabled": False}, ignore_eos=True).json)
        running.until("specllama_texts_total", 11)
        running.until("specllama_texts_running + specllama_texts_waiting", 0)  # in a later scrape, perhaps
        yield running


def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text("utf-8"))


def queries() -> list[str]:
    """All expressions of the dashboard, its variables filled in as Grafana does."""
    expressions = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    return [e.replace("$__rate_interval", "1m").replace("$instance", ".*") for e in expressions]


def test_sums_agree_with_the_responses(
    prometheus: Prometheus, answered: tuple[Server, list[dict[str, Any]]]
) -> None:
    answers = answered[1]
    vllm = [f["metrics"]["speculative_decoding"] for f in answers]
    n_drafted, n_accept = (
        sum(f["timings"][name] for f in answers) for name in ("draft_n", "draft_n_accepted")
    )
    n_drafts = sum(each["num_spec_steps"] for each in vllm)
    usage = [f["usage"] for f in answers]
    cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usage)
    expected = {
        "specllama_prompt_tokens_total": sum(u["prompt_tokens"] for u in usage),
        "specllama_prompt_tokens_cached_total": cached,
        "specllama_generation_tokens_total": sum(u["completion_tokens"] for u in usage),
        "specllama_drafts_total": n_drafts,
        "specllama_draft_tokens_total": n_drafted,
        "specllama_draft_tokens_accepted_total": n_accept,
        "sum(specllama_draft_tokens_accepted_by_position_total)": n_accept,
        "specllama_forced_tokens_total": sum(f["speculation"]["forced_tokens"] for f in answers),
        'vllm:spec_decode_num_drafts_total{model_name="pydoc-target"}': n_drafts,
        "vllm:spec_decode_num_draft_tokens_total": n_drafted,
        "vllm:spec_decode_num_accepted_tokens_total": n_accept,
        "sum(vllm:spec_decode_num_accepted_tokens_per_pos_total)": n_accept,
        "specllama_queue_seconds_count": 11,
        "specllama_time_to_first_token_seconds_count": 11,
        "specllama_request_seconds_count": 7,
        'sum(specllama_http_requests_total{path="/v1/completions",status="200"})': 4,
        'sum(specllama_http_requests_total{path="/v1/chat/completions",status="400"})': 1,
        "specllama_texts_running + specllama_texts_waiting": 0,
        "specllama_engine_up": 1,
        "sum(specllama_texts_by_verdict_total)": 11,
        "sum(specllama_draft_tokens_by_position_total)": n_drafted,
    }
    assert {expression: prometheus.value(expression) for expression in expected} == expected
    assert n_accept > 0
    assert prometheus.value('specllama_texts_by_verdict_total{verdict="not drafted"}') >= 1
    seconds = [prometheus.value(f"specllama_compared_{name}_seconds_total") for name in ("decode", "plain")]
    assert all(value > 0 for value in seconds)
    by_position = prometheus.query("vllm:spec_decode_num_accepted_tokens_per_pos_total")
    assert {series["metric"]["position"] for series in by_position} == {"0", "1", "2", "3"}


@pytest.mark.parametrize("expression", queries())
def test_the_dashboard_shows_something(prometheus: Prometheus, expression: str) -> None:
    """Every query parses and has a value; a rate needs two scrapes, a quotient something to divide by: of its
    series, those of drafters and positions that drafted nothing between two scrapes have none.
    """
    found = [float(series["value"][1]) for series in prometheus.query(expression)]
    values = [value for value in found if not math.isnan(value)]
    assert values, expression
    assert all(value >= 0 and math.isfinite(value) for value in values), values


def test_promtool_accepts_the_metrics(tools: Programs, answered: tuple[Server, list[dict[str, Any]]]) -> None:
    complaints = tools.complaints(answered[0].get("/metrics").body)
    assert [c for c in complaints if not (c.startswith("vllm:") and c.endswith(ALIAS_LINT))] == []


def test_the_dashboard_uses_only_existing_metrics(answered: tuple[Server, list[dict[str, Any]]]) -> None:
    exposed = {name.partition("{")[0] for name in answered[0].samples()}
    named = {name for e in queries() for name in re.findall(r"\b(?:specllama_|vllm:)\w+", e)}
    assert named <= exposed
    families = {re.sub(r"_(bucket|total)$", "", name) for name in named}
    for family in exposed:
        ours = family.startswith("specllama_") and not family.endswith(("_created", "_sum", "_count"))
        kind = re.sub(r"_(bucket|total)$", "", family)
        assert not ours or kind in families or kind in NOT_SHOWN, f"{family} is on no panel"


NOT_SHOWN = {
    "specllama_texts",
    "specllama_forced_tokens",
    "specllama_speedup_over_plain",  # by text; the panel has it by time
    "specllama_acceptance_rate",  # by text; the panel has it by token
}


def test_the_dashboard_can_be_imported() -> None:
    """What Grafana's import wants: an input for the data source, which every panel uses."""
    board = dashboard()
    (wanted,) = board["__inputs"]
    assert (wanted["type"], wanted["pluginId"]) == ("datasource", "prometheus")
    assert (board["id"], board["schemaVersion"] >= 36) == (None, True)
    source = {"type": "prometheus", "uid": f"${{{wanted['name']}}}"}
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 12
    for panel in panels:
        assert panel["datasource"] == source
        assert panel["title"]
        assert all(target["datasource"] == source for target in panel["targets"])
    cells = []
    for box in (panel["gridPos"] for panel in panels):
        cells += [(box["x"] + x, box["y"] + y) for x in range(box["w"]) for y in range(box["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
