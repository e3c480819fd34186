"""`specllama doctor`: what this installation can use, and what to do where something is missing.

Every part of the report is made by a module of its own (doctor_*.py) as plain data and problems; this one
puts them together. The exit code is the one that `run` would end with.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from specllama.cli import console
from specllama.cli.doctor.text import lines, width
from specllama.cli.doctor.words import Problem

EXAMPLES = """
Examples:
  specllama doctor
  specllama doctor --rpc 192.168.1.20:50052 --json
"""
SCHEMA = "specllama.doctor/1"


def doctor(given: Mapping[str, Any]) -> int:
    """Print the report on stdout; 0 unless something makes `run` impossible."""
    report, problems = examine(given.get("rpc"))
    if given.get("json"):
        console.data(json.dumps(report) + "\n")
    else:
        console.data("\n".join(lines(report, width())) + "\n")
    return next((problem.exit_code for problem in problems if problem.exit_code), 0)


def examine(workers: str | None = None) -> tuple[dict[str, Any], list[Problem]]:
    """The whole report as plain data, and what is wrong."""
    from specllama.cli.doctor import config as doctor_config
    from specllama.cli.doctor import engine as doctor_engine
    from specllama.cli.doctor import files as doctor_files
    from specllama.cli.doctor import hub as doctor_hub
    from specllama.cli.doctor import machine as doctor_machine
    from specllama.cli.doctor import rpc as doctor_rpc

    problems: list[Problem] = []
    asked = {} if workers is None else {"rpc": doctor_rpc.workers(workers, problems)}
    probe = doctor_hub.Probe(os.environ)  # answers while the engine starts
    engine = doctor_engine.engine(problems)
    report = {
        "schema": SCHEMA,
        "versions": doctor_machine.versions(engine),
        "machine": doctor_machine.machine(engine, problems),
        "engine": engine,
        "embedded_pair": doctor_engine.embedded_pair(problems),
        "cache": doctor_files.cache(problems),
        "exactness": doctor_files.exactness(),
        "hub": doctor_hub.hub(os.environ, probe, problems),
        "config": doctor_config.config(os.environ, problems),
        **asked,
    }
    problems.sort(key=lambda problem: not problem.exit_code)
    ok = not any(problem.exit_code for problem in problems)
    return {**report, "problems": [p.to_dict() for p in problems], "ok": ok}, problems
