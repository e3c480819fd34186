"""`specllama doctor`: what this installation can use, and what to do where something is missing.

Every other module of this package produces a part of the report, as plain data and problems; this one
assembles them. The exit code is the one that `run` would end with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from specllama.cli import console
from specllama.cli.doctor import files, machine
from specllama.cli.doctor.files import Problem
from specllama.cli.doctor.text import lines
from specllama.json_types import JsonObject

EXAMPLES = """
Examples:
  specllama doctor              # does it work, is a GPU used, are texts exact, do drafts pay
  specllama doctor --all
  specllama doctor --rpc 192.168.1.20:50052 --json
"""
SCHEMA = "specllama.doctor/1"


def doctor(given: Mapping[str, Any]) -> int:
    """Print the verdict, or the whole report; returns 0 unless something makes `run` impossible."""
    report, problems = examine(given.get("rpc"))
    console.report(given, report, lines(report, console.width(), given.get("all", False)))
    return next((problem.exit_code for problem in problems if problem.exit_code), 0)


def examine(workers: str | None = None) -> tuple[JsonObject, list[Problem]]:
    """The whole report as plain data, and the problems."""
    problems: list[Problem] = []
    probe = machine.Probe(os.environ)  # answers while the engine starts
    started = machine.engine(problems)
    rpc = {}
    if workers is not None:
        machine.check_rpc(started, problems)  # first: `run` ends with this one
        rpc["rpc"] = machine.workers(workers, problems)
    usable = files.calibrations()
    report = {
        "schema": SCHEMA,
        "versions": machine.versions(started),
        "machine": machine.machine(started, problems),
        "engine": started,
        "embedded_pair": machine.embedded_pair(problems),
        "demo_model": machine.demo_model(problems),
        "cache": files.cache(usable, problems),
        "exactness": files.exactness(usable),
        "stored": files.stored(usable),
        "hub": machine.hub(os.environ, probe, problems),
        "config": machine.config(os.environ, problems),
        **rpc,
    }
    problems.sort(key=lambda problem: not problem.exit_code)
    ok = not any(problem.exit_code for problem in problems)
    return {**report, "problems": [p.to_dict() for p in problems], "ok": ok}, problems
