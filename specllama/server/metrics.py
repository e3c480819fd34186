"""Counters and histograms for Prometheus, in registries of their own.

A text is counted when it ends, by the figures that its response reports, so that the two agree to the token.
A text whose engine died has no figures and is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from specllama.core.gain import Gain, PlainRate, gain
from specllama.core.stats import RunStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
_GAPS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_SPEEDUPS = (0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)


class HttpMetrics:
    """Counters of the whole server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("path", "status")
        text = "HTTP requests, by path and status"
        self.http = Counter("specllama_http_requests", text, labels, registry=self.registry)


class Metrics:
    """Of one model. owner: of its requests only, without what would tell the length of others' texts."""

    def __init__(self, model: str, owner: str = "") -> None:
        self.model = model
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"specllama_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"specllama_{name}", text, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"specllama_{name}", text, registry=registry, buckets=buckets)

        self.refused = counter("requests_refused", "Requests refused because the queue was full")
        self.texts = counter("texts", "Texts generated")
        self.prompt = counter("prompt_tokens", "Prompt tokens, counted once per prompt")
        self.cached = counter("prompt_tokens_cached", "Prompt tokens that were in the KV cache already")
        self.generated = counter("generation_tokens", "Tokens generated")
        self.drafts = counter("drafts", "Drafts verified")
        self.drafted = counter("draft_tokens", "Draft tokens verified")
        self.accepted = counter("draft_tokens_accepted", "Draft tokens accepted")
        self.branch_drafted = counter("draft_branch_tokens", "Second candidates among the draft tokens")
        self.branch_accepted = counter("draft_branch_tokens_accepted", "Second candidates accepted")
        self.drafted_at = counter(
            "draft_tokens_by_position", "Draft tokens verified, by position in the draft", ("position",)
        )
        self.at_position = counter(
            "draft_tokens_accepted_by_position",
            "Draft tokens accepted, by position in the draft",
            ("position",),
        )
        self.drafted_by = counter(
            "draft_tokens_by_drafter", "Draft tokens verified, by drafter", ("drafter",)
        )
        labels = ("drafter", "position")
        self.drafted_by_source = counter(
            "draft_tokens_by_source", "Draft tokens verified, by drafter and position", labels
        )
        self.accepted_by_source = counter(
            "draft_tokens_accepted_by_source", "Draft tokens accepted, by drafter and position", labels
        )
        self.forced = counter("forced_tokens", "Tokens forced by a grammar, which are not draft tokens")
        self.rate = histogram("acceptance_rate", "Share of a text's draft tokens that were accepted", _RATES)
        self.speedup = histogram(
            "speedup_over_plain", "Decoding speed of a drafted text relative to plain decoding", _SPEEDUPS
        )
        self.verdicts = counter(
            "texts_by_verdict", "Texts by whether drafting made them faster than plain decoding", ("verdict",)
        )
        self.decode_seconds = counter(
            "compared_decode_seconds", "Decoding time of the texts whose gain is known, drafted or not"
        )
        self.plain_seconds = counter(
            "compared_plain_seconds", "Estimated time of decoding the same texts without drafts"
        )
        self.queued = histogram("queue_seconds", "Time from a request to its slot", _SECONDS)
        self.first_token = histogram(
            "time_to_first_token_seconds", "Time from a request to its first token", _SECONDS
        )
        self.from_disk = counter("prompt_tokens_from_disk", "Prompt tokens whose state was read from disk")
        self.between_tokens = histogram("inter_token_seconds", "Time between two tokens of a text", _GAPS)
        self.seconds = histogram(
            "request_seconds", "Time from a request to the end of its last text", _SECONDS
        )
        self.embedded = counter("embedded_texts", "Texts of which vectors or scores were made")
        self.embedded_tokens = counter("embedded_tokens", "Tokens of these texts")
        self.running = gauge("texts_running", "Texts being generated")
        self.waiting = gauge("texts_waiting", "Texts waiting for a slot")
        self.slots = gauge("slots", "Texts that can be generated at once")
        if not owner:
            self.kv = gauge("kv_used_ratio", "Share of the target's KV cache in use")
            self.states = gauge("prefix_states", "Saved prefix states outside the KV cache")
            self.state_bytes = gauge("prefix_state_bytes", "Memory of the saved prefix states")
        self.up = gauge("engine_up", "Whether the engine process responds; 1 while the model is unloaded")
        self.loaded = gauge("model_loaded", "Whether the model is in memory")
        self.restarts = gauge("engine_restarts", "Engine processes started after another one ended")
        registry.register(_Aliases(self, model))

    def count(self, stats: RunStats, plain: PlainRate, first_of_prompt: bool) -> None:
        """plain: the rate of plain decoding, for the gain. first_of_prompt: whether it is its prompt's."""
        self.texts.inc()
        if first_of_prompt:
            self.prompt.inc(stats.n_prompt)
            self.cached.inc(stats.n_reused)
            self.from_disk.inc(stats.n_from_disk)
        self.generated.inc(stats.n_predict)
        self.drafts.inc(stats.reached[0] if stats.reached else 0)
        self.drafted.inc(stats.n_drafted)
        self.accepted.inc(stats.n_accept)
        self.branch_drafted.inc(stats.n_branch)
        self.branch_accepted.inc(stats.n_branch_accept)
        for j, (n, accepted) in enumerate(zip(stats.reached, stats.accepted_at, strict=True)):
            self.drafted_at.labels(str(j)).inc(n)
            self.at_position.labels(str(j)).inc(accepted)
        for name, n in stats.drafted_by.items():
            self.drafted_by.labels(name).inc(n)
        for name, counts in stats.reached_by.items():
            for j, (n, accepted) in enumerate(zip(counts, stats.accepted_by[name], strict=True)):
                self.drafted_by_source.labels(name, str(j)).inc(n)
                self.accepted_by_source.labels(name, str(j)).inc(accepted)
        self.forced.inc(stats.n_forced_accept)
        if stats.acceptance_rate is not None:
            self.rate.observe(stats.acceptance_rate)
        self._count_gain(stats, gain(stats, plain))

    def _count_gain(self, stats: RunStats, gained: Gain) -> None:
        """Texts without drafts count too: their time is that of plain decoding plus that spent on drafters.
        Texts whose gain is unknown or uncertain add to neither time.
        """
        seconds = stats.decode_seconds - stats.stalled_seconds
        drafted = stats.plain_rounds < stats.rounds
        verdict = gained.verdict if drafted else "not drafted"
        self.verdicts.labels(verdict).inc()
        if drafted and (gained.speedup is None or gained.reason):
            return
        plain = seconds * gained.speedup if gained.speedup is not None else seconds - stats.draft_seconds
        if gained.speedup is not None:
            self.speedup.observe(gained.speedup)
        self.decode_seconds.inc(max(0.0, seconds))
        self.plain_seconds.inc(max(0.0, plain))


Figures = TypeVar("Figures")


class MetricsByOwner(Generic[Figures]):
    """Metrics of all owners together, and of each if there are several. make: by owner, "" for all."""

    def __init__(self, make: Callable[[str], Figures], several: bool) -> None:
        self.all, self._make, self._several = make(""), make, several
        self._own: dict[str, Figures] = {}

    def of(self, owner: str) -> Figures:
        """The metrics that an owner may read: its own if there are several owners. "": those of all."""
        if not self._several or not owner:
            return self.all
        if owner not in self._own:
            self._own[owner] = self._make(owner)
        return self._own[owner]

    def counting(self, owner: str) -> tuple[Figures, ...]:
        """The metrics in which an owner's requests are counted."""
        own = self.of(owner)
        return (self.all,) if own is self.all else (self.all, own)


def exposition(server: HttpMetrics, models: Sequence[Metrics]) -> bytes:
    """All metrics in Prometheus' text format; those of a model are labelled `model`."""
    return generate_latest(_Together(server, models))


class _Together(Collector):
    """Merges several registries: each family once."""

    def __init__(self, server: HttpMetrics, models: Sequence[Metrics]) -> None:
        self._server, self._models = server, models

    def collect(self) -> Iterator[Metric]:
        yield from self._server.registry.collect()
        merged: dict[str, Metric] = {}
        for metrics in self._models:
            for family in metrics.registry.collect():
                one = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                labels = (
                    {} if any("model_name" in s.labels for s in family.samples) else {"model": metrics.model}
                )
                one.samples += [s._replace(labels={**labels, **s.labels}) for s in family.samples]
        yield from merged.values()


class _Aliases(Collector):
    """vLLM's names for the same counters, for existing dashboards."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics, self._model = metrics, model

    def collect(self) -> Iterator[CounterMetricFamily]:
        ours = self._metrics
        for name, counter in (
            ("num_drafts", ours.drafts),
            ("num_draft_tokens", ours.drafted),
            ("num_accepted_tokens", ours.accepted),
            ("num_accepted_tokens_per_pos", ours.at_position),
        ):
            (family,) = counter.collect()
            labels = ["model_name", "engine", *(["position"] if counter is ours.at_position else [])]
            alias = CounterMetricFamily(f"vllm:spec_decode_{name}", family.documentation, labels=labels)
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    alias.add_metric([self._model, "0", *sample.labels.values()], sample.value)
            yield alias
