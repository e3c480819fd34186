"""What `doctor` reports on stored figures: of which model and setting they are, and how old.

Files of other versions may lack any figure; nothing is decided from them here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specllama.cli.doctor.files import calibration, files, number, readable_key
from specllama.config import store
from specllama.json_types import JsonObject
from specllama.prefix_disk.directory import StateDirectory, default_directory

_DAY = 24 * 3600.0


def stored() -> JsonObject:
    """All that is stored, on this machine."""
    models = []
    for file in files(store.cache_dir() / "calibration"):
        if (data := calibration(file)) is not None:
            models.append(_profile(file, data, time.time()))
    ledger = StateDirectory(default_directory()).read_ledger()
    return {"models": sorted(models, key=lambda one: one["age"]), "read_rate": ledger.load_rate or None}


def _profile(file: Path, data: Mapping[str, Any], now: float) -> JsonObject:
    key, measured = data.get("key"), data.get("measured")
    at = number(measured.get("comparison")) if isinstance(measured, dict) else None
    lora = key.get("lora") if isinstance(key, dict) else None
    return {
        **readable_key(data),
        "lora": len(lora) if isinstance(lora, list) else 0,
        "age": max(0.0, now - file.stat().st_mtime),
        "t1": number(data.get("t1")),
        "widths": sorted(set(_widths(data))),
        "compared": max(0.0, now - at) if at is not None else None,
        "change": number(data.get("change")),
        "exact_width": number(data.get("exact_width")),
        "pairs": list(_pairs(data)),
        "file": str(file),
    }


def _widths(data: Mapping[str, Any]) -> Iterator[int]:
    curves = data.get("curves")
    for one in curves.values() if isinstance(curves, dict) else ():
        for point in _points(one):
            yield point[0]


def _points(part: object) -> Iterator[list[Any]]:
    widths = part.get("widths") if isinstance(part, dict) else None
    for point in widths if isinstance(widths, list) else ():
        if isinstance(point, list) and len(point) == 3 and isinstance(point[0], int):
            yield point


def _pairs(data: Mapping[str, Any]) -> Iterator[JsonObject]:
    pairs = data.get("pairs")
    for one in pairs if isinstance(pairs, list) else ():
        pair, learnt = (one.get(name) for name in ("pair", "learnt")) if isinstance(one, dict) else (0, 0)
        if not isinstance(pair, dict) or not isinstance(learnt, dict):
            continue
        draft, drafters = pair.get("draft"), pair.get("drafters")
        model = draft.get("model") if isinstance(draft, dict) else None
        name, _, quant = model[:3] if isinstance(model, list) and len(model) >= 3 else (None, "", "")
        tables, priced = learnt.get("tables"), learnt.get("priced")
        tokens, acceptance = dict[str, float](), dict[str, float]()
        for of, table in tables.items() if isinstance(tables, dict) else ():
            right, seen = (_sum(table, part) for part in ("right", "seen"))
            if seen:
                tokens[of], acceptance[of] = seen, right / seen
        parts = [*priced.values()] if isinstance(priced, dict) else []
        steps = (point for s in parts if isinstance(s, dict) for point in _points(s.get("steps")))
        singles = (number(point[1]) for point in steps if point[0] == 1)
        yield {
            "draft": f"{name} {quant}" if name else None,
            "drafters": [str(x) for x in drafters] if isinstance(drafters, list) else [],
            "step": next(singles, None),
            "tokens": tokens,
            "acceptance": acceptance,
        }


def _sum(table: object, name: str) -> float:
    values = table.get(name) if isinstance(table, dict) else None
    return sum(number(x) or 0.0 for x in values) if isinstance(values, list) else 0.0


def age(seconds: float) -> str:
    """How long ago something was, in the largest unit that fits."""
    for unit, name in ((_DAY, "day"), (3600.0, "hour"), (60.0, "minute")):
        if seconds >= unit:
            n = int(seconds / unit)
            return f"{n} {name}{'s' if n > 1 else ''} ago"
    return "just now"
