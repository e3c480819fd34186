"""The metrics: what Prometheus reads agrees with the responses to the token."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.support.serving import QUESTION, Server, first_event

PAIRS = {
    "specllama_drafts_total": "vllm:spec_decode_num_drafts_total",
    "specllama_draft_tokens_total": "vllm:spec_decode_num_draft_tokens_total",
    "specllama_draft_tokens_accepted_total": "vllm:spec_decode_num_accepted_tokens_total",
}


def grown(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after[name] - before.get(name, 0.0)


def test_metrics_agree_with_the_responses(server: Server) -> None:
    server.until(lambda: server.samples()["specllama_texts_running"] == 0)
    before = server.samples()
    answers = [
        server.complete(max_tokens=80, seed=1, temperature=0, ignore_eos=True).json,
        server.complete(["def read(", "import "], n=2, max_tokens=20, seed=2).json,
        server.chat(QUESTION, max_tokens=30, stream=True, stream_options={"include_usage": True}).events[-1],
        server.chat(QUESTION, json_schema={"enum": ["a long text that nobody has to guess"]}).json,
    ]
    assert server.chat(QUESTION, temperature=-1).status == 400
    after = server.samples()
    totals = {
        "specllama_prompt_tokens_total": sum(f["usage"]["prompt_tokens"] for f in answers),
        "specllama_prompt_tokens_cached_total": sum(
            f["usage"]["prompt_tokens_details"]["cached_tokens"] for f in answers
        ),
        "specllama_generation_tokens_total": sum(f["usage"]["completion_tokens"] for f in answers),
        "specllama_draft_tokens_total": sum(f["timings"]["draft_n"] for f in answers),
        "specllama_draft_tokens_accepted_total": sum(f["timings"]["draft_n_accepted"] for f in answers),
        "specllama_drafts_total": sum(
            f["metrics"]["speculative_decoding"]["num_spec_steps"] for f in answers
        ),
        "specllama_forced_tokens_total": sum(f["speculation"]["forced_tokens"] for f in answers),
        "specllama_texts_total": 7,
        "specllama_queue_seconds_count": 7,
        "specllama_time_to_first_token_seconds_count": 7,
        "specllama_request_seconds_count": 4,
    }
    assert {name: grown(before, after, name) for name in totals} == totals
    assert totals["specllama_draft_tokens_accepted_total"] > 0
    for ours, theirs in PAIRS.items():
        (alias,) = [value for name, value in after.items() if name.startswith(theirs + "{")]
        assert alias == after[ours]
    positions = [grown(before, after, name) for name in after if "num_accepted_tokens_per_pos_total" in name]
    assert sum(positions) == totals["specllama_draft_tokens_accepted_total"]
    tokens, texts = totals["specllama_generation_tokens_total"], totals["specllama_texts_total"]
    gaps = grown(before, after, "specllama_inter_token_seconds_count")
    assert tokens - 5 * texts <= gaps <= tokens - texts


def test_metrics_can_be_parsed(server: Server) -> None:
    server.chat(max_tokens=2)
    reply = server.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(reply.body.decode())}
    assert families["specllama_generation_tokens"].type == "counter"
    assert families["specllama_inter_token_seconds"].type == "histogram"
    assert families["vllm:spec_decode_num_accepted_tokens"].documentation
    assert all(family.documentation for family in families.values())


def test_gauges(server: Server) -> None:
    idle = server.samples()
    assert (idle["specllama_slots"], idle["specllama_texts_running"], idle["specllama_engine_up"]) == (
        4,
        0,
        1,
    )
    first_event(server.begin(prompt="def ", stream=True, ignore_eos=True, max_tokens=900, n=6))
    busy = server.samples()
    assert (busy["specllama_texts_running"], busy["specllama_texts_waiting"]) == (4, 2)
    assert 0 < busy["specllama_kv_used_ratio"] <= 1
    server.hang_up()
    server.until(lambda: server.samples()["specllama_texts_running"] == 0)


def test_unknown_paths_are_one_series(server: Server) -> None:
    for i in range(5):
        server.get(f"/unknown/{i}")
    assert not any("/unknown" in name for name in server.samples())
    assert server.samples()['specllama_http_requests_total{path="other",status="404"}'] >= 5
