"""Cost curves of nine machines, those that `python -m scripts.replay` replays texts on."""

from __future__ import annotations

import json

from tests.support.paths import ROOT

_FILE = ROOT / "scripts" / "replay" / "machines.json"
MACHINES: dict[str, dict[int, float]] = {  # t(n) / t(1) by rows
    name: {int(n): t for n, t in points.items()}
    for name, points in json.loads(_FILE.read_text("utf-8")).items()
}
