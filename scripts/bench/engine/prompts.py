"""Prompts of the measurements of the engine."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.bench.measuring import CHATML

PROMPTS = {
    "explain": ["What does shutil.copytree do?", "Explain os.walk."],
    "source": ["Show the source of textwrap.dedent."],
    "json": ["Turn this into JSON: name Ada Lovelace, age 36, city London, active true"],
    "edit": [
        "Rename `value` to `item` in this code:\n"
        "```python\ndef put(self, value):\n    self.queue.append(value)\n```"
    ],
}


def load_prompts(path: str | None, per_workload: int) -> list[tuple[str, str]]:
    """(workload, rendered prompt), `per_workload` of each."""
    if path is None:
        return [(w, CHATML.format(p)) for w, ps in PROMPTS.items() for p in ps[:per_workload]]
    return [(w, p) for w, ps in json.loads(Path(path).read_text()).items() for p in ps[:per_workload]]
