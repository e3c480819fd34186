"""Counters and histograms for Prometheus, in a registry of their own.

Counters grow at the end of a text, by the figures that its response reports, so that the two agree to the
token. A text whose engine died has no figures and is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

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
    """What is counted for the whole server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("path", "status")
        text = "HTTP requests by path and status"
        self.http = Counter("specllama_http_requests", text, labels, registry=self.registry)


class Metrics:
    """All figures of one model. owner: of one of its owners instead, without those that tell how long the
    texts of others are.
    """

    def __init__(self, model: str, owner: str = "") -> None:
        self.model = model
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"specllama_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"specllama_{name}", text, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"specllama_{name}", text, registry=registry, buckets=buckets)

        self.refused = counter("requests_refused", "requests that found the queue full")
        self.texts = counter("texts", "texts that ended")
        self.prompt = counter("prompt_tokens", "tokens of prompts, each prompt counted once")
        self.cached = counter("prompt_tokens_cached", "of these, tokens that were in the cache already")
        self.generated = counter("generation_tokens", "tokens generated")
        self.drafts = counter("drafts", "drafts that were verified")
        self.drafted = counter("draft_tokens", "draft tokens that were verified")
        self.accepted = counter("draft_tokens_accepted", "draft tokens that were emitted")
        self.branch_drafted = counter("draft_branch_tokens", "draft tokens that are second candidates")
        self.branch_accepted = counter("draft_branch_tokens_accepted", "those of them that were emitted")
        self.drafted_at = counter(
            "draft_tokens_by_position", "draft tokens verified, by position in the draft", ("position",)
        )
        self.at_position = counter(
            "draft_tokens_accepted_by_position", "those of them that were emitted", ("position",)
        )
        self.drafted_by = counter("draft_tokens_by_drafter", "draft tokens verified", ("drafter",))
        places = ("drafter", "position")
        self.at_place = counter("draft_tokens_by_source", "guessed tokens by drafter and position", places)
        self.accepted_at_place = counter(
            "draft_tokens_accepted_by_source", "those of them that were emitted", places
        )
        self.forced = counter("forced_tokens", "tokens that a grammar forced, which are no draft tokens")
        self.rate = histogram("acceptance_rate", "share of its draft tokens that a text accepted", _RATES)
        self.speedup = histogram(
            "speedup_over_plain", "decoding speed of a text with drafts over that without", _SPEEDUPS
        )
        self.verdicts = counter(
            "texts_by_verdict", "texts by whether drafts made them faster than plain decoding", ("verdict",)
        )
        self.decode_seconds = counter(
            "compared_decode_seconds", "seconds of decoding of the texts whose gain is known, drafted or not"
        )
        self.plain_seconds = counter(
            "compared_plain_seconds", "seconds that decoding them without drafts would have taken"
        )
        self.queued = histogram("queue_seconds", "from the request to its slot", _SECONDS)
        self.first_token = histogram("time_to_first_token_seconds", "from the request", _SECONDS)
        self.from_disk = counter("prompt_tokens_from_disk", "those whose state was read from the disk")
        self.between_tokens = histogram("inter_token_seconds", "between the tokens of a text", _GAPS)
        self.seconds = histogram("request_seconds", "from the request to the end of its last text", _SECONDS)
        self.running = gauge("texts_running", "texts that have a slot")
        self.waiting = gauge("texts_waiting", "texts that wait for a slot")
        self.slots = gauge("slots", "texts that can be written at once")
        if not owner:
            self.kv = gauge("kv_used_ratio", "share of the target's KV cache that holds something")
            self.states = gauge("prefix_states", "evaluated texts and partial states outside of that cache")
            self.state_bytes = gauge("prefix_state_bytes", "memory that they occupy")
        self.up = gauge("engine_up", "whether the engine process answers, of a model that shall be in memory")
        self.loaded = gauge("model_loaded", "whether the model is in memory")
        self.restarts = gauge("engine_restarts", "engine processes started after the end of another one")
        registry.register(_Aliases(self, model))

    def count(self, stats: RunStats, plain: PlainRate, first_of_prompt: bool) -> None:
        """Count a text that has ended. plain: the speed of decoding without drafts, for the gain.
        first_of_prompt: whether it is the first text of its prompt.
        """
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
                self.at_place.labels(name, str(j)).inc(n)
                self.accepted_at_place.labels(name, str(j)).inc(accepted)
        self.forced.inc(stats.n_forced_accept)
        if stats.acceptance_rate is not None:
            self.rate.observe(stats.acceptance_rate)
        self._count_gain(stats, gain(stats, plain))

    def _count_gain(self, stats: RunStats, found: Gain) -> None:
        """Texts without drafts count too: they took as long as plain decoding, and what looking for drafts
        took. Where the gain is unknown, both times are left out.
        """
        seconds = stats.decode_seconds - stats.stalled_seconds
        drafted = stats.plain_rounds < stats.rounds
        verdict = found.verdict if drafted else "not drafted"
        self.verdicts.labels(verdict).inc()
        if drafted and found.speedup is None:
            return
        plain = seconds * found.speedup if found.speedup is not None else seconds - stats.draft_seconds
        if found.speedup is not None:
            self.speedup.observe(found.speedup)
        self.decode_seconds.inc(max(0.0, seconds))
        self.plain_seconds.inc(max(0.0, plain))


class _Registered(Protocol):
    registry: CollectorRegistry


Figures = TypeVar("Figures", bound=_Registered)


class MetricsByOwner(Generic[Figures]):
    """The figures of all owners, and of each owner where there are several. make: from the name of an owner,
    "" for all, to its figures.
    """

    def __init__(self, make: Callable[[str], Figures], several: bool) -> None:
        self.all, self._make, self._several = make(""), make, several
        self._own: dict[str, Figures] = {}

    def of(self, owner: str) -> Figures:
        """What an owner may read: its own figures where there are several. "": all figures."""
        if not self._several or not owner:
            return self.all
        if owner not in self._own:
            self._own[owner] = self._make(owner)
        return self._own[owner]

    def counting(self, owner: str) -> tuple[Figures, ...]:
        """Where the requests of an owner are counted."""
        own = self.of(owner)
        return (self.all,) if own is self.all else (self.all, own)


def exposition(server: HttpMetrics, models: Sequence[Metrics]) -> bytes:
    """All figures in Prometheus' text format; those of a model have its name as the label `model`."""
    return generate_latest(_Together(server, models))


class _Together(Collector):
    """The figures of several registries, each family once."""

    def __init__(self, server: HttpMetrics, models: Sequence[Metrics]) -> None:
        self._server, self._models = server, models

    def collect(self) -> Iterator[Metric]:
        yield from self._server.registry.collect()
        found: dict[str, Metric] = {}
        for metrics in self._models:
            for family in metrics.registry.collect():
                one = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                labels = {} if "model_name" in _label_names(family) else {"model": metrics.model}
                one.samples += [s._replace(labels={**labels, **s.labels}) for s in family.samples]
        yield from found.values()


def _label_names(family: Metric) -> frozenset[str]:
    return frozenset(name for sample in family.samples for name in sample.labels)


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
