"""`specllama models`: models on this disk and models known by name; `models rm`, `add` and `verify`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from specllama.cli import console
from specllama.cli.formatting import listing, wrapped
from specllama.cli.models_show import Fit, Machine, fit, guessed_fit, licence_of, this_machine
from specllama.cli.options import write_file
from specllama.cli.progress import DownloadProgress, library
from specllama.config.toml_file import parse_toml, read_text, read_toml
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import IntegrityError, SpecllamaError, UsageError
from specllama.gguf.header import Header, read_model
from specllama.json_types import JsonObject
from specllama.models import installed, manifest
from specllama.models.demo import DemoStore
from specllama.models.names import DEMO, PYDOC
from specllama.models.progress import DownloadState
from specllama.models.projectors import find_projector
from specllama.models.quants import ModelFiles, size
from specllama.models.resolve import Library
from specllama.text.terminal import printable


class Installed(NamedTuple):
    """A model in the cache. header: of its first part, None where it cannot be read."""

    model: installed.InstalledModel
    header: Header | None
    fit: Fit


def models(given: Mapping[str, Any]) -> int:
    """Print the models, with `on_disk` no others; returns 0. Raises ConfigError."""
    known = library(models_dir=given.get("models_dir", ""))
    begun, machine = list(installed.unfinished_downloads(known)), this_machine()
    headers = [(model, _header(model.files[0].link)) for model in installed.installed_models(known)]
    there = [Installed(model, header, _fit(header, machine, model)) for model, header in headers]
    report: JsonObject = {
        "schema": "specllama.models/1",
        "cache": str(known.root),
        "on_disk": [_about(known, *one) for one in there],
        "unfinished": [
            {"repo": u.repo, "hash": u.etag, "bytes": u.n_bytes, "path": str(u.path)} for u in begun
        ],
        "own": [{"name": file.name, "path": file.path} for file in known.own_files],
        "known": [_entry(known, e, there) for e in known.manifest.entries.values()],
        "built_in": _built_in(known),
    }

    def lines(width: int | None) -> Iterator[str]:
        if listed := [*_disk_lines(known, there, machine, width)]:
            yield from (*listed, "")
        for u in begun:
            text = f"unfinished: {u.repo}, {size(u.n_bytes)}; specllama pull resumes it"
            yield from wrapped(text, width, more="  ")
        yield "used where no model is named: demo, else pydoc"
        built_in = report["built_in"]
        states = ["on disk" if one["on_disk"] else f"specllama pull {one['name']}" for one in built_in]
        rows = [(one["name"], one["model"], size(one["bytes"]), one["licence"]) for one in built_in]
        rows_with = [(*row, state) for row, state in zip(rows, states, strict=True)]
        yield from listing(("name", "model", "size", "licence", ""), rows_with, width)
        if not there:
            yield ""
            yield from wrapped(f"no models in {known.root}; specllama pull NAME downloads one", width)
        if not given.get("on_disk"):
            yield ""
            yield from _known_lines(known, there, machine, width)

    return console.report(given, report, lines(console.width()))


def on_disk(given: Mapping[str, Any]) -> int:
    """Print the models on this disk alone; returns 0. Raises ConfigError."""
    return models({**given, "on_disk": True})


def remove(given: Mapping[str, Any]) -> int:
    """Remove models from the cache, and names of files, which stay; returns 0.

    Raises NotFoundError, UsageError and ConfigError before anything is removed, and ResourceError.
    """
    known, names = library(), [name for name in given["names"] if name != DEMO]
    demo = DemoStore(known.environ) if DEMO in given["names"] else None
    if demo is not None:
        demo.require()
    named = {one.lower() for one in known.manifest.files}
    own = {n: file for n in names if n.lower() in named and (file := known.parse(n, "NAME").file)}
    names = [name for name in names if name not in own]
    chosen = installed.select if given.get("all") else installed.select_one
    todo = {model.content: model for name in names for model in chosen(known, name)}
    repos = {where.repo for name in names if (where := known.parse(name, "NAME").where) and not where.tag}
    for name in own:
        path = manifest.user_path(known.environ)
        write_file(path, manifest.ManifestFile(read_toml(path)).without(name))
    removed: list[JsonObject] = [{"name": name, "bytes": 0} for name in own]
    removed += [{"name": model.name, "bytes": installed.remove(known, model)} for model in todo.values()]
    for repo in sorted(repos):
        if freed := installed.remove_unfinished(known, repo):
            removed.append({"name": f"{repo}, unfinished", "bytes": freed})
    if demo is not None:
        removed.append({"name": DEMO, "bytes": demo.remove()})
    lines = [f"removed the name {name}; the file {file} stays" for name, file in own.items()]
    lines += [f"removed {one['name']}, {size(one['bytes'])} freed" for one in removed[len(own) :]]
    return console.report(given, {"schema": "specllama.models-rm/1", "removed": removed}, lines)


def _header(path: str | Path) -> Header | None:
    """The header of a model, None where it cannot be read. path: of its first part."""
    with contextlib.suppress(SpecllamaError):
        return read_model(path)
    return None


def _fit(header: Header | None, machine: Machine, model: installed.InstalledModel | None = None) -> Fit:
    mmproj = str(model.projector.link) if model is not None and model.projector else ""
    return fit(header, machine, mmproj) if header else Fit()


def _about(known: Library, model: installed.InstalledModel, header: Header | None, fits: Fit) -> JsonObject:
    entry = model.entry
    return {
        "name": model.name,
        "alias": model.alias or None,
        "repo": model.repo,
        "commit": model.commit,
        "path": str(model.files[0].link),
        "files": [file.path for file in model.files],
        "mmproj": str(model.projector.link) if model.projector else None,
        "missing": list(model.model.missing),
        "bytes": model.n_bytes,
        "quant": header.quant if header else model.model.quant,
        "params": header.n_params if header else None,
        "n_ctx_train": header.n_ctx_train if header else None,
        "licence": licence_of(entry, header),
        "drafts": [d.short_name for d in known.manifest.drafts_for(entry)] if entry else [],
        "readable": header is not None,
        "fits": None if not fits.word else fits.plan is not None,
        "n_ctx_here": fits.plan.n_ctx if fits.plan else None,
    }


def _entry(known: Library, entry: manifest.ManifestEntry, there: Sequence[Installed]) -> JsonObject:
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
        "on_disk": any(one.model.entry is entry for one in there),
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


def _disk_lines(
    known: Library, there: Sequence[Installed], machine: Machine, width: int | None
) -> Iterator[str]:
    rows = []
    for model, header, fits in there:
        name = model.name + (f" ({model.alias})" if model.alias else "")
        state = "incomplete" if model.model.missing else printable(licence_of(model.entry, header))
        shown = (None, Fit()) if model.model.missing else (header, fits)
        rows.append(_disk_row(name, model.n_bytes, model.model.quant, *shown, state))
        if model.projector:
            rows.append(_projector_row(model.projector.link))
    head = ("name", "size", "quant", "context", "fits here", "licence")
    if rows:
        yield from wrapped(f"on disk, in {known.root}", width)
        yield from listing(head, rows, width, least=(0, 1, 4))
    rows = []
    for file in known.own_files:
        header = _header(file.path)
        there_is = [part for part in file.parts if os.path.isfile(part)]
        unusable = f"{file.path} {'cannot be read' if there_is else 'is gone'}"
        state = printable(licence_of(None, header)) if header else unusable
        n_bytes = sum(os.path.getsize(part) for part in there_is)
        rows.append(_disk_row(file.name, n_bytes, "", header, _fit(header, machine), state))
        if path := header and find_projector(known, file.path).path:
            rows.append(_projector_row(path))
    if rows:
        yield from (*([""] if there else []), "files of your own")
        yield from listing(head, rows, width, least=(0, 1, 4))


def _disk_row(
    name: str, n_bytes: int, quant: str, header: Header | None, fits: Fit, state: str
) -> tuple[str, ...]:
    """A model on disk; header: None where it cannot be used."""
    context = str(header.n_ctx_train) if header and header.n_ctx_train else "unknown"
    quant = (header.quant if header else quant) or "unknown"
    return printable(name), size(n_bytes), quant, context, fits.word, state


def _projector_row(path: str | Path) -> tuple[str, ...]:
    """The projector of the model in the row before."""
    name = os.path.basename(path)
    quant = ModelFiles({1: name}).quant
    return f"  with {printable(name)}", size(os.path.getsize(path)), quant, "", "", "reads images"


def _known_lines(
    known: Library, there: Sequence[Installed], machine: Machine, width: int | None
) -> Iterator[str]:
    yield "known by name; specllama pull NAME downloads one"
    rows = []
    for entry in known.manifest.entries.values():
        name = f"{entry.name} ({', '.join(entry.aliases)})" if entry.aliases else entry.name
        drafts = ", ".join(d.short_name for d in known.manifest.drafts_for(entry))
        if any(one.model.entry is entry for one in there):
            continue
        n_bytes = entry.guessed_bytes
        about = f"about {size(n_bytes)}" if n_bytes else "unknown"
        rows.append((name, about, guessed_fit(n_bytes, machine), drafts, entry.licence, entry.usual))
    head = ("name", "size", "fits here", "drafts", "licence", "repository")
    yield from listing(head, rows, width, least=(0, 1, 2, 3))
    yield from wrapped("specllama models show NAME says where one comes from, and whether it fits", width)


def add(given: Mapping[str, Any]) -> int:
    """Give a file a name; returns 0. Raises UsageError, NotFoundError, IntegrityError, ResourceError."""
    known, name = library(), given["name"]
    path = os.path.abspath(os.path.expanduser(given["file"]))
    read_model(path)
    if not manifest.is_own_name(name):
        message = f"{name!r} cannot be the name of a model"
        raise UsageError(message, f"{manifest.NAME_FORM}; demo and pydoc are taken")
    other = manifest.find_own(known.own_files, name)
    if other is not None or known.manifest.find(name) is not None:
        what = other.path if other is not None else "a model of the hub"
        raise UsageError(f"{name} is {what} already", "choose another name")
    file = manifest.user_path(known.environ)
    text = read_text(file) if file.exists() else f'schema = "{manifest.SCHEMA}"\n'
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    escaped = "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped)
    entry = f'\n[models."{name}"]\nfile = "{escaped}"\n'
    changed = parse_toml(file, text.rstrip("\n") + "\n" + entry)
    manifest.ManifestFile(changed).files()
    write_file(file, changed.text)
    console.data(f"{name} is {path}\n")
    console.note(f"specllama models rm {name} removes the name again, and not the file")
    return 0


def verify(given: Mapping[str, Any]) -> int:
    """Hash files in the cache again and print which are intact; returns the exit code.

    Raises NotFoundError, and IntegrityError for the first damaged file, once all are verified.
    """
    known, names = library(), given.get("names", ())
    demo = DemoStore(known.environ)
    chosen = (model for name in names if name != DEMO for model in installed.select(known, name))
    todo = [file for one in (chosen if names else installed.installed_models(known)) for file in _files(one)]
    if DEMO in names or (not names and demo.is_on_disk()):
        todo.append(_File(DEMO, demo.require(), demo.verify))
    todo = list({file.path: file for file in todo}.values())  # models of a repository share their projector
    damaged: list[IntegrityError] = []
    results = list(_verified(todo, damaged))
    words = {True: "whole  ", False: "DAMAGED", None: "unknown"}
    lines = (f"{words[one['ok']]} {one['name']} {one['path']}" for one in results)
    console.report(given, {"schema": "specllama.models-verify/1", "files": results}, lines)
    if damaged and not given.get("json"):
        raise damaged[0]
    return IntegrityError.exit_code if damaged else 0


class _File(NamedTuple):
    """A file to verify. verify: hashes it, calls its argument with the bytes read so far, and returns False
    where there is nothing to compare the hash with; raises IntegrityError.
    """

    name: str
    path: Path
    verify: Callable[[Callable[[int], None]], bool | None]


def _files(model: installed.InstalledModel) -> Iterator[_File]:
    for file in (*model.files, *([model.projector] if model.projector else [])):
        yield _File(model.name, file.link, partial(installed.verify, file))


def _verified(todo: Sequence[_File], damaged: list[IntegrityError]) -> Iterator[JsonObject]:
    """The files after their verification. damaged: collects the errors."""
    display = DownloadProgress()
    total, done = sum(file.path.stat().st_size for file in todo), 0
    for file in todo:

        def progress(n_bytes: int, name: str = file.path.name, before: int = done) -> None:
            display.state(DownloadState("verifying", name, before + n_bytes, total))

        ok: bool | None = None
        reason = ""
        try:
            ok = None if file.verify(progress) is False else True
        except IntegrityError as error:
            damaged.append(error)
            ok, reason = False, error.message
        done += file.path.stat().st_size
        display.clear()
        yield {"name": file.name, "path": str(file.path), "ok": ok, "reason": reason}
