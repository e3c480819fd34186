"""`specllama models`: models on this disk and models known by name; `models rm`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specllama.cli import console
from specllama.cli.formatting import columns, listing, wrapped
from specllama.cli.models_show import Fit, Machine, fit, guessed_fit, this_machine
from specllama.cli.progress import library
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import SpecllamaError
from specllama.gguf.header import Header, read_model
from specllama.json_types import JsonObject
from specllama.models.demo import DemoStore
from specllama.models.installed import (
    InstalledModel,
    installed_models,
    remove_unfinished,
    select,
    select_one,
    unfinished_downloads,
)
from specllama.models.installed import remove as remove_model
from specllama.models.manifest import ManifestEntry
from specllama.models.names import DEMO, PYDOC
from specllama.models.quants import size
from specllama.models.resolve import Library
from specllama.text.terminal import printable

EXAMPLES = """
Examples:
  specllama models
  specllama models show 8B
  specllama models rm 8B:Q8_0 user/repo
  specllama models rm user/repo --all

Each model has one name, which `models` lists. A repository's name alone removes its only model here, and its
unfinished downloads; with --all all of its models.
"""


def models(given: Mapping[str, Any]) -> int:
    """Print the models, with `on_disk` no others; returns 0. Raises ConfigError."""
    known = library(models_dir=given.get("models_dir", ""))
    there = [(model, _header(model.files[0].link)) for model in installed_models(known)]
    begun, machine = list(unfinished_downloads(known)), this_machine()
    if given.get("json"):
        report = {
            "schema": "specllama.models/1",
            "cache": str(known.root),
            "on_disk": [_about(known, model, header, machine) for model, header in there],
            "unfinished": [
                {"repo": u.repo, "hash": u.etag, "bytes": u.n_bytes, "path": str(u.path)} for u in begun
            ],
            "own": [{"name": file.name, "path": file.path} for file in known.own_files],
            "known": [_entry(known, e, there) for e in known.manifest.entries.values()],
            "built_in": _built_in(known),
        }
        console.data(json.dumps(report) + "\n")
        return 0
    width = columns(sys.stdout)
    lines = [*_disk_lines(known, there, machine, width), ""]
    for u in begun:
        text = f"unfinished: {u.repo}, {size(u.n_bytes)}; specllama pull resumes it"
        lines += wrapped(text, width, more="  ")
    lines += _built_in_lines(known, width)
    if not given.get("on_disk"):
        lines += ["", *_known_lines(known, there, machine, width)]
    console.data("".join(f"{line}\n" for line in lines))
    return 0


def on_disk(given: Mapping[str, Any]) -> int:
    """Print the models on this disk alone; returns 0. Raises ConfigError."""
    return models({**given, "on_disk": True})


def remove(given: Mapping[str, Any]) -> int:
    """Remove models from the cache; returns 0.

    Raises NotFoundError and UsageError before anything is removed, and ResourceError.
    """
    known, names = library(), [name for name in given["names"] if name != DEMO]
    demo = DemoStore(known.environ) if DEMO in given["names"] else None
    if demo is not None:
        demo.require()
    chosen = select if given.get("all") else select_one
    todo = {model.content: model for name in names for model in chosen(known, name)}
    repos = {where.repo for name in names if (where := known.parse(name, "NAME").where) and not where.tag}
    removed: list[JsonObject] = []
    for model in todo.values():
        removed.append({"name": model.name, "bytes": remove_model(known, model)})
    for repo in sorted(repos):
        if freed := remove_unfinished(known, repo):
            removed.append({"name": f"{repo}, unfinished", "bytes": freed})
    if demo is not None:
        removed.append({"name": DEMO, "bytes": demo.remove()})
    if given.get("json"):
        console.data(json.dumps({"schema": "specllama.models-rm/1", "removed": removed}) + "\n")
        return 0
    for one in removed:
        console.data(f"removed {one['name']}, {size(one['bytes'])} freed\n")
    return 0


def _header(path: str | Path) -> Header | None:
    """The header of a model, None where it cannot be read. path: of its first part."""
    with contextlib.suppress(SpecllamaError):
        return read_model(path)
    return None


def _about(known: Library, model: InstalledModel, header: Header | None, machine: Machine) -> JsonObject:
    entry, fits = model.entry, fit(header, machine) if header else Fit()
    return {
        "name": model.name,
        "alias": model.alias or None,
        "repo": model.repo,
        "commit": model.commit,
        "path": str(model.files[0].link),
        "files": [file.path for file in model.files],
        "missing": list(model.missing),
        "bytes": model.n_bytes,
        "quant": header.quant if header else model.quant,
        "params": header.n_params if header else None,
        "n_ctx_train": header.n_ctx_train if header else None,
        "licence": _licence(entry, header),
        "drafts": [d.short_name for d in known.manifest.drafts_for(entry)] if entry else [],
        "readable": header is not None,
        "fits": None if not fits.word else fits.plan is not None,
        "n_ctx_here": fits.plan.n_ctx if fits.plan else None,
    }


def _entry(
    known: Library, entry: ManifestEntry, there: Sequence[tuple[InstalledModel, Header | None]]
) -> JsonObject:
    pair = known.manifest.pairs.get(entry.name)
    return {
        "name": entry.name,
        "aliases": list(entry.aliases),
        "repo": entry.where.repo,
        "default": entry.default,
        "licence": entry.licence or "not stated",
        "source": entry.source,
        "drafts": [d.name for d in known.manifest.drafts_for(entry)],
        "notes": list(pair.notes) if pair else [],
        "on_disk": any(model.entry is entry for model, _ in there),
    }


def _built_in(known: Library) -> list[JsonObject]:
    demo, pair = DemoStore(known.environ), (EMBEDDED_TARGET, EMBEDDED_DRAFT)
    return [
        {
            "name": DEMO,
            "model": demo.model.name,
            "path": str(demo.path),
            "bytes": demo.model.n_bytes,
            "licence": demo.model.licence,
            "on_disk": demo.is_on_disk(),
        },
        {
            "name": PYDOC,
            "model": "the embedded pair",
            "path": str(EMBEDDED_TARGET),
            "bytes": sum(path.stat().st_size for path in pair),
            "licence": "PSF-2.0",
            "on_disk": True,
        },
    ]


def _licence(entry: ManifestEntry | None, header: Header | None) -> str:
    stated = ""
    if header is not None:
        stated = header.text("general.license.name") or header.text("general.license")
    return (entry.licence if entry else "") or stated or "not stated"


def _disk_lines(
    known: Library,
    there: Sequence[tuple[InstalledModel, Header | None]],
    machine: Machine,
    width: int | None,
) -> Iterator[str]:
    rows = []
    for model, header in there:
        alias = f" ({model.alias})" if model.alias else ""
        shown = None if model.missing else header
        state = "incomplete" if model.missing else printable(_licence(model.entry, header))
        rows.append(_disk_row(model.name + alias, model.n_bytes, model.quant, shown, machine, state))
    head = ("name", "size", "quant", "context", "fits here", "licence")
    if rows:
        yield from wrapped(f"on disk, in {known.root}", width)
        yield from listing(head, rows, width, least=(0, 1, 4))
    else:
        yield from wrapped(f"no models in {known.root}; specllama pull NAME downloads one", width)
    rows = []
    for file in known.own_files:
        header = _header(file.path)
        there_is = [part for part in file.parts if os.path.isfile(part)]
        state = printable(_licence(None, header)) if header else f"{file.path} cannot be read"
        n_bytes = sum(os.path.getsize(part) for part in there_is)
        rows.append(_disk_row(file.name, n_bytes, "", header, machine, state))
    if rows:
        yield from ("", "files of your own")
        yield from listing(head, rows, width, least=(0, 1, 4))


def _disk_row(
    name: str, n_bytes: int, quant: str, header: Header | None, machine: Machine, state: str
) -> tuple[str, ...]:
    """A model on disk; header: None where it cannot be used."""
    context = str(header.n_ctx_train) if header and header.n_ctx_train else "unknown"
    fits = fit(header, machine).word if header else ""
    quant = (header.quant if header else quant) or "unknown"
    return printable(name), size(n_bytes), quant, context, fits, state


def _built_in_lines(known: Library, width: int | None) -> Iterator[str]:
    yield "used where no model is named: demo, else pydoc"
    rows = [
        (
            one["name"],
            one["model"],
            size(one["bytes"]),
            one["licence"],
            "on disk" if one["on_disk"] else f"specllama pull {one['name']}",
        )
        for one in _built_in(known)
    ]
    yield from listing(("name", "model", "size", "licence", ""), rows, width)


def _known_lines(
    known: Library,
    there: Sequence[tuple[InstalledModel, Header | None]],
    machine: Machine,
    width: int | None,
) -> Iterator[str]:
    yield "known by name; specllama pull NAME downloads one"
    rows = []
    for entry in known.manifest.entries.values():
        name = f"{entry.name} ({', '.join(entry.aliases)})" if entry.aliases else entry.name
        drafts = ", ".join(d.short_name for d in known.manifest.drafts_for(entry))
        if any(model.entry is entry for model, _ in there):
            continue
        n_bytes = entry.guessed_bytes
        about = f"about {size(n_bytes)}" if n_bytes else "unknown"
        rows.append((name, about, guessed_fit(n_bytes, machine), drafts, entry.licence, entry.usual))
    head = ("name", "size", "fits here", "drafts", "licence", "repository")
    yield from listing(head, rows, width, least=(0, 1, 2, 3))
    yield from wrapped("specllama models show NAME says where one comes from, and whether it fits", width)
