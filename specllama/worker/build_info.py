"""What this build of llama.cpp is and can use, for `doctor`. Runs in the engine process."""

from __future__ import annotations

import re
from typing import Any

from specllama.llama.devices import devices
from specllama.llama.library import build_info


def inspect_build() -> dict[str, Any]:
    """The versions, backends and abilities of the build (llama.build_info), with "features", what each
    backend was compiled for, and "devices" as llama.cpp names them, their memory in bytes.
    """
    info = build_info()
    found = [
        {"name": d.name, "description": d.description, "gpu": d.gpu, "free": d.free, "total": d.total}
        for d in devices()
    ]
    abilities = features(info.pop("system_info"))
    return {**info, "features": abilities, "devices": found}


def features(system_info: str) -> dict[str, list[str]]:
    """What is switched on in a line like `CPU : AVX2 = 1 | FMA = 0 | CUDA : ARCHS = 890 |`, by backend; a
    value other than 1 is kept.
    """
    found: dict[str, list[str]] = {}
    backend = ""
    for field in system_info.split("|"):
        *heads, setting = field.split(" : ")
        backend = heads[-1].strip() if heads else backend
        pair = re.fullmatch(r"\s*(\S+) = (.*?)\s*", setting)
        if pair and pair[2] not in ("0", ""):
            found.setdefault(backend, []).append(pair[1] if pair[2] == "1" else f"{pair[1]}={pair[2]}")
    return found
