"""`specllama pull`: models from the hub onto this disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specllama.cli import console
from specllama.cli.formatting import wrapped
from specllama.cli.progress import library
from specllama.errors import NetworkError, UsageError
from specllama.json_types import JsonObject
from specllama.models.hub.pull import PullPlan, plan
from specllama.models.names import DEMO
from specllama.models.prepare import prepare_models
from specllama.models.projectors import projectors_of
from specllama.models.quants import size
from specllama.models.resolve import Library, ResolvedModel


def pull(given: Mapping[str, Any]) -> int:
    """Download models and print their paths; two are a target and its draft. Returns the exit code.

    Raises what models/prepare.py raises, and UsageError for a name that is no model of the hub.
    """
    known = library(verify=not given.get("no_verify", False))
    if DEMO in given["names"]:
        return _pull_demo(known, given)
    resolved = [_resolved(known, name) for name in dict.fromkeys(given["names"])]
    pair, images = len(resolved) == 2, not given.get("no_mmproj", False)
    if given.get("dry_run"):
        projectors = projectors_of(known, resolved[: 1 if pair else None]) if images else []
        files = [*resolved, *projectors]
        todo = plan(known, files)
        return console.report(given, _object(files, todo), _plan_lines(files, todo, console.width()))
    paths = prepare_models(known, resolved, pair, force=given.get("force", False), images=images)
    return _show(given, [model.name for model in resolved], paths)


def _show(given: Mapping[str, Any], names: Sequence[str], paths: Sequence[str]) -> int:
    models = [{"name": name, "path": path} for name, path in zip(names, paths, strict=True)]
    return console.report(given, {"schema": "specllama.pull/1", "models": models}, paths)


def _pull_demo(known: Library, given: Mapping[str, Any]) -> int:
    """Download the demo model and print its path; returns the exit code. Raises what `fetch` raises."""
    from specllama.models.demo import DemoStore, fetch

    if len(given["names"]) > 1:
        raise UsageError("demo is downloaded alone", "specllama pull demo, then the other names")
    store = DemoStore(known.environ)
    model = store.model
    if not given.get("dry_run"):
        return _show(given, [DEMO], [str(fetch(store, known.listener))])
    missing = 0 if store.is_on_disk() else model.package_bytes
    plan = {
        "schema": "specllama.pull-plan/1",
        "models": [{"name": DEMO, "path": str(store.path)}],
        "bytes": model.package_bytes,
        "missing": missing,
    }
    state = "not on disk" if missing else "on disk"
    lines = (
        f"{DEMO}: {model.name}, {size(model.n_bytes)}, {state}",
        f"{size(missing)} to download into {store.folder}",
    )
    return console.report(given, plan, lines)


def _resolved(known: Library, name: str) -> ResolvedModel:
    """The model as it is on the hub now; as it is on disk where the hub cannot be reached."""
    parsed = known.parse(name, "NAME")
    if parsed.built_in:
        raise UsageError(f"{name} comes with specllama, there is nothing to download")
    if parsed.where is None:
        known.find(name, "NAME")  # for an unknown name, its error says more
        message = f"{name} is a file already"
        raise UsageError(message, "pull takes names: specllama models, or user/repo:QUANT")
    try:
        return known.on_hub(parsed)
    except NetworkError as error:
        here = known.on_disk(parsed)
        if here is None:
            raise
        console.warning(f"{error.message}; {name} is on disk and stays as it is")
        return here


def _plan_lines(models: Sequence[ResolvedModel], todo: PullPlan, width: int | None) -> Iterator[str]:
    lines, had = [], {item.file.etag: item.have for item in todo.items}
    for model in models:
        if model.path:
            lines.append(f"{model.name}: {model.path} is on disk")
        repo = model.listing.name.repo if model.listing else ""
        for file in model.parts:
            have = had[file.etag]
            state = "on disk" if have == file.size else f"{size(have)} on disk" if have else "not on disk"
            lines.append(f"{model.name}: {repo}/{file.path}, {size(file.size)}, {state}")
    free = "unknown" if todo.free is None else size(todo.free)
    lines.append(f"{size(todo.missing)} to download into {todo.root}, {free} free")
    return (part for line in lines for part in wrapped(line, width, more="  "))


def _object(models: Sequence[ResolvedModel], todo: PullPlan) -> JsonObject:
    have = {item.file.etag: item.have for item in todo.items}
    return {
        "schema": "specllama.pull-plan/1",
        "models": [
            {
                "name": model.name,
                "path": model.path or None,
                "repo": model.listing.name.repo if model.listing else None,
                "commit": model.listing.commit if model.listing else None,
                "files": [
                    {"path": f.path, "bytes": f.size, "have": have[f.etag], "hash": f.etag}
                    for f in model.parts
                ],
            }
            for model in models
        ],
        "bytes": todo.n_bytes,
        "missing": todo.missing,
        "free_disk": todo.free,
        "cache": str(todo.root),
    }
