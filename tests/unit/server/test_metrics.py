"""The figures of several models in Prometheus' text format."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from specllama.server.metrics import HttpMetrics, Metrics, exposition


def test_each_family_comes_once_with_the_models_as_labels() -> None:
    http, one, other = HttpMetrics(), Metrics("a"), Metrics('b"\n')
    http.http.labels("/v1/models", "200").inc()
    one.texts.inc(2)
    other.texts.inc(3)
    other.at_position.labels("0").inc(7)
    one.queued.observe(0.3)
    text = exposition(http, [one, other]).decode()
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    samples = {(s.name, *sorted(s.labels.items())): s.value for f in families for s in f.samples}
    assert samples["specllama_texts_total", ("model", "a")] == 2
    assert samples["specllama_texts_total", ("model", 'b"\n')] == 3
    assert samples["specllama_queue_seconds_count", ("model", "a")] == 1
    assert samples["specllama_queue_seconds_count", ("model", 'b"\n')] == 0
    position = "specllama_draft_tokens_accepted_by_position_total"
    assert samples[position, ("model", 'b"\n'), ("position", "0")] == 7
    http_name = "specllama_http_requests_total"
    assert samples[http_name, ("path", "/v1/models"), ("status", "200")] == 1
    alias = "vllm:spec_decode_num_drafts_total"
    assert (alias, ("engine", "0"), ("model_name", "a")) in samples
    kinds = {family.name: family.type for family in families}
    assert kinds["specllama_texts"] == "counter"
    assert kinds["specllama_queue_seconds"] == "histogram"
