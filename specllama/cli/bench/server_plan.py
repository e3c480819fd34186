"""The plan of `bench --server`, checked before any request is sent."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specllama.bench import workloads
from specllama.bench.serving.client import ServerAddress, parse_address
from specllama.bench.serving.sweep import MAX_MARK, SweepSettings, prompts
from specllama.cli.api_keys import keys
from specllama.cli.bench.plan import (
    MAX_RUNS,
    MAX_TOKENS,
    N_TOKENS,
    RUNS,
    list_items,
    temperature_list,
    whole_number,
)
from specllama.cli.bench.report_file import checked_path
from specllama.config.options_measuring import ASKING, BENCH
from specllama.errors import UsageError

CONCURRENCY, SECONDS = "1,2,4,8,16", 600.0
MAX_CLIENTS, MAX_REQUESTS = 256, 10_000
_SHARED = (
    "prompts", "workloads", "n_tokens", "runs", "temperatures", "model_name", "report", "json", "debug",
)  # fmt: skip
_ALLOWED = {*_SHARED, *(option.name for option in ASKING)}


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """What to measure. key: "" for none; model: by the server's name, "" for its first; seconds: the limit of
    an answer; workloads: numbers of prompts.
    """

    address: ServerAddress
    key: str = field(repr=False)
    model: str
    seconds: float
    sweep: SweepSettings
    workloads: Mapping[str, int]
    report: Path | None


def server_plan(given: Mapping[str, Any], values: Mapping[str, Any]) -> ServerPlan:
    """The plan. given: the command line; values: the same with configuration files and environment.

    Raises UsageError, NotFoundError.
    """
    where = parse_address(given["server"])
    for option in BENCH:
        if option.name in given and option.name not in _ALLOWED:
            hint = "its models and how they draft are the server's own; --model names one of them"
            raise UsageError(f"{option.flags[0]} has no meaning with --server", hint)
    clients = [
        whole_number("--concurrency", text, 1, MAX_CLIENTS)
        for text in list_items("--concurrency", given.get("concurrency", CONCURRENCY))
    ]
    available = workloads.load_prompts(given["prompts"]) if "prompts" in given else workloads.WORKLOADS
    chosen = workloads.select(available, given.get("workloads"))
    n = whole_number("--requests", given["requests"], 1, MAX_REQUESTS) if "requests" in given else None
    if n is not None and n < max(clients):
        raise UsageError(f"--requests {n} are fewer than the {max(clients)} clients of --concurrency")
    temperatures = temperature_list(given.get("temperatures", "0"))
    if len(temperatures) > 1:
        raise UsageError("--temp takes one temperature with --server")
    seconds = given.get("timeout", SECONDS)
    if not (math.isfinite(seconds) and 0 < seconds <= 1e6):
        raise UsageError(f"--timeout takes seconds above 0, not {seconds:g}")
    model = given.get("model_name", "")
    if not model.isprintable() or len(model) > 512:
        raise UsageError("--model needs a name of up to 512 printable characters")
    known = keys(values)
    return ServerPlan(
        address=where,
        key=known[0] if known else "",
        model=model,
        seconds=seconds,
        sweep=SweepSettings(
            prompts=prompts(chosen, max(clients), n),
            concurrencies=sorted(set(clients)),
            runs=whole_number("--runs", given.get("runs", RUNS), 1, MAX_RUNS),
            n_tokens=whole_number("-n", given.get("n_tokens", N_TOKENS), 2, MAX_TOKENS),
            temperature=temperatures[0],
            raw=given.get("raw", False),
            ignore_eos=given.get("ignore_eos", False),
            number=secrets.randbelow(MAX_MARK),
        ),
        workloads={name: len(texts) for name, texts in chosen.items()},
        report=checked_path(given["report"]) if "report" in given else None,
    )
