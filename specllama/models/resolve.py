"""Resolves a model's name (an alias, a repository of the hub, a path) to a file on disk or on the hub.

`Library.find` does so for all commands, the server and the Python API.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.config.places import near
from specllama.data import EMBEDDED_TARGET
from specllama.errors import AccessError, ConfigError, IntegrityError, NetworkError, NotFoundError, UsageError
from specllama.models import manifest
from specllama.models.demo import DemoStore
from specllama.models.hub.cache import RepoCache
from specllama.models.hub.env import hub_cache, hub_endpoint
from specllama.models.manifest import MODELS_DIR, Manifest, ManifestEntry, OwnFile, find_own, own_files
from specllama.models.names import BUILT_IN, DEMO, RepoName, check_text, parse_repo, shown
from specllama.models.progress import Listener
from specllama.models.quants import PREFERRED, ModelFiles, candidates, choose
from specllama.wording import counted

if TYPE_CHECKING:  # not needed for models on disk
    from specllama.gguf.header import Header
    from specllama.models.hub.api import Hub, HubFile, Listing

_MOST_NAMED = 8  # paths in a message


@dataclass(frozen=True, slots=True)
class ParsedName:
    """A parsed model name, before it is looked up. where: None for a path and for a built-in name. entry: in
    models.toml. built_in: "demo", "pydoc" (the embedded pair), or "" for other names. file: of the user's own
    with this name, "" for other names.
    """

    name: str
    where: RepoName | None = None
    entry: ManifestEntry | None = None
    built_in: str = ""
    file: str = ""

    @property
    def default(self) -> str:
        """The quantisation or file that models.toml names, or ""."""
        return self.entry.default if self.entry is not None else ""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model that was found. path: its first part on disk, "" if it must be downloaded; listing, files: the
    model on the hub, None without a request to the hub.
    """

    parsed: ParsedName
    path: str = ""
    listing: Listing | None = None
    files: ModelFiles | None = None

    @property
    def name(self) -> str:
        """The name that the user gave."""
        return self.parsed.name

    @property
    def parts(self) -> list[HubFile]:
        """Its files on the hub; [] without a request to the hub."""
        if self.listing is None or self.files is None:
            return []
        return [self.listing.files[part] for part in self.files.parts]


class Library:
    """All models that a name can refer to: on this disk, in models.toml, on the hub. Requests about models on
    disk are not sent to the hub.

    listener: receives notes and progress. environ: os.environ by default. verify: whether models are refused
    whose hash the hub does not give. models_dir: a folder of models, instead of that of SPECLLAMA_MODELS_DIR.
    """

    def __init__(
        self,
        listener: Listener | None = None,
        environ: Mapping[str, str] | None = None,
        verify: bool = True,
        models_dir: str = "",
    ) -> None:
        self.environ, self._verify = os.environ if environ is None else environ, verify
        self._models_dir = models_dir or self.environ.get(MODELS_DIR, "")
        self._warned = False
        self.listener = listener or Listener()
        self.root = hub_cache(self.environ)
        self._listings: dict[RepoName, Listing] = {}

    @cached_property
    def hub(self) -> Hub:
        """The hub that the environment names."""
        from specllama.models.hub.api import Hub

        return Hub(self.environ, self.listener)

    @cached_property
    def manifest(self) -> Manifest:
        """models.toml; a note names a project's. Raises ConfigError."""
        models = manifest.load(self.environ)
        if models.project is not None:
            self.listener.note(f"models: {near(models.project)}")
        return models

    @property
    def own_files(self) -> list[OwnFile]:
        """Models with names outside the cache: in models.toml and folders, as of now. Raises ConfigError."""
        known = self.manifest
        if self._missing_folder:
            raise ConfigError(self._missing_folder, "name one that there is")
        folders = [*filter(None, [self._models_dir]), *known.folders]
        taken = {name.lower() for name in (*known.names(), *BUILT_IN)}
        return own_files(known.files, folders, taken)

    @property
    def _missing_folder(self) -> str:
        """That the folder of models is missing, in words; "" where it is there, or none is named."""
        there = not self._models_dir or os.path.isdir(os.path.expanduser(self._models_dir))
        return "" if there else f"{self._models_dir} is no folder of models that can be read"

    def called(self, name: str) -> list[str]:
        """The paths of files in folders of models that are called so, as where two have one name."""
        stem = name.lower().removesuffix(".gguf")
        return [file.path for file in self.own_files if file.stem.lower() == stem][:_MOST_NAMED]

    def gone(self, parsed: ParsedName) -> NotFoundError:
        """The error about a file of the user's own that is no longer where its name says."""
        name = parsed.name
        hint = f"move it back, or specllama models rm {name}, then specllama models add {name} FILE"
        return NotFoundError(f"{name} is {parsed.file}, and that file is gone", hint)

    def parse(self, name: str, argument: str) -> ParsedName:
        """Parse a name: a file, an alias with or without a quantisation, or a repository.

        argument: the option, for messages. Raises UsageError, NotFoundError, ConfigError.
        """
        check_text(name, argument)
        path = os.path.expanduser(name)
        try:
            there = os.path.exists(path)
            is_file = there and not os.path.isdir(path)
        except (OSError, ValueError) as error:
            raise UsageError(f"{argument}: {shown(name)} cannot be used: {error}") from None
        is_path = is_file or path.startswith((os.sep, "."))
        if (is_path or name in BUILT_IN) and self._missing_folder and not self._warned:
            self._warned = True
            self.listener.warning(self._missing_folder)
        if is_path:
            return ParsedName(name)
        if name in BUILT_IN:
            manifest.check_names(self.environ)
            return ParsedName(name, built_in=name)
        if (own := find_own(self.own_files, name)) is not None:
            return ParsedName(name, file=own.path)
        alias, _, tag = name.partition(":")
        if "/" not in alias and (entry := self.manifest.find(alias)) is not None:
            if name.endswith(":"):
                raise UsageError(f"{shown(name)}: something is missing at its end", "as 8B:Q8_0")
            return ParsedName(name, RepoName(entry.where.repo, tag, entry.where.revision), entry)
        if there:
            return ParsedName(name)
        host = hub_endpoint(self.environ).rpartition("://")[2].partition("/")[0].lower()
        where = parse_repo(name, host)
        if where is None or (name.count("/") > 1 and os.path.isdir(name.partition("/")[0])):
            return ParsedName(name)  # one that begins with a directory of this disk is a path
        return ParsedName(name, where, self.manifest.of_repo(where.repo))

    def find(self, name: str, argument: str) -> ResolvedModel:
        """The model with this name, on disk or else on the hub.

        Raises UsageError, NotFoundError, AccessError, NetworkError, IntegrityError, ConfigError.
        """
        parsed = self.parse(name, argument)
        if (here := self.on_disk(parsed, argument)) is not None:
            return here
        try:
            return self.on_hub(parsed)
        except (NotFoundError, AccessError) as error:
            if not name.lower().endswith(".gguf") or ":" in name:
                raise
            raise type(error)(f"{argument}: there is no file {name}; {error.message}", error.hint) from None
        except NetworkError as error:
            assert parsed.where is not None
            there = [one.name for one in RepoCache(self.root, parsed.where.repo).models()]
            if not there:
                raise
            raise NetworkError(f"{error.message}; on disk: {', '.join(there)}", error.hint) from None

    def on_disk(self, parsed: ParsedName, argument: str = "") -> ResolvedModel | None:
        """The model if it is complete on this disk; None if it must be downloaded. Raises NotFoundError for a
        path that does not exist, and if the demo model is not on disk; UsageError for a folder.
        """
        if parsed.built_in:
            return ResolvedModel(parsed, str(self.built_in(parsed.built_in)))
        if parsed.where is None:
            return ResolvedModel(parsed, self._path(parsed, argument))
        stored = RepoCache(self.root, parsed.where.repo)
        stored_model = stored.find(parsed.where, parsed.default)
        if stored_model is None:
            return None
        usual = (parsed.where.tag or parsed.default or PREFERRED[0]).upper()
        if not parsed.where.tag and stored_model.model.quant and not stored_model.model.means(usual):
            self.listener.note(f"{parsed.name}: {stored_model.model.first} is used, as it is on disk")
        return ResolvedModel(parsed, str(stored_model.files[0].link))

    def on_hub(self, parsed: ParsedName) -> ResolvedModel:
        """The model on the hub, even if it is on disk. Raises what `listing` and `choose` raise."""
        assert parsed.where is not None
        listing = self.listing(parsed.where, parsed.name)
        on_offer = candidates((*listing.files, *listing.unverified), parsed.where.tag or parsed.default)
        files = choose(on_offer, parsed.where.tag, str(parsed.where), parsed.default, complete=False)
        if files.missing:
            raise IntegrityError(
                f"{parsed.where}: the hub itself lacks {files.missing[0]}, part of {files.first}",
                "choose another quantisation or repository, or tell the publisher of this one",
            )
        unverified = [path for path in files.parts if path not in listing.files]
        if unverified:
            listing = self._unverified(listing, unverified)
        return ResolvedModel(parsed, listing=listing, files=files)

    def _unverified(self, listing: Listing, paths: Sequence[str]) -> Listing:
        """The listing with files without a hash. Raises IntegrityError if refused, or without a size."""
        from specllama.models.hub.api import HubFile

        what = f"{self.hub.endpoint} gives no hash for {paths[0]} of {listing.name.repo}"
        if not self._verify:
            self.listener.warning(f"{what}: what comes is not verified")
        else:
            raise IntegrityError(
                f"{what}, with which a download is verified",
                f"specllama pull --no-verify {listing.name} downloads it without that, and records its hash; "
                "or set HF_ENDPOINT to a hub that gives hashes",
            )
        files = dict(listing.files)
        for path in paths:
            n_bytes = self.hub.size(listing, path)
            if n_bytes is None:
                raise IntegrityError(f"{self.hub.endpoint} gives no size for {path} of {listing.name.repo}")
            address = f"{listing.name.repo}@{listing.commit}/{path}"
            files[path] = HubFile(path, n_bytes, hashlib.sha256(address.encode()).hexdigest(), verified=False)
        return replace(listing, files=files)

    def listing(self, where: RepoName, name: str = "") -> Listing:
        """A repository's listing, requested once. name: as the user says it. Raises as `Hub.listing`."""
        key = RepoName(where.repo, "", where.revision)
        if key not in self._listings:
            self._listings[key] = self.hub.listing(key, name or str(where))
        return self._listings[key]

    def header(self, model: ResolvedModel) -> Header:
        """The model's header, from disk or by Range requests. Raises as `read_model` and `remote_header`."""
        from specllama.gguf.header import read_model

        if model.path or model.listing is None or model.files is None:
            return read_model(model.path)
        from specllama.models.hub.api import remote_header

        on_disk = partial(RepoCache(self.root, model.listing.name.repo).content, model.listing.commit)
        return remote_header(self.hub, model.listing, model.files, on_disk, self.listener)

    def draft_for(self, target: ResolvedModel) -> tuple[ResolvedModel | None, list[ManifestEntry]]:
        """The first known draft for a target that is on disk, and all known drafts."""
        entry = target.parsed.entry or self.entry_of(target.path)
        known = self.manifest.drafts_for(entry) if entry is not None else []
        for draft in known:
            parsed = ParsedName(draft.short_name, draft.where, draft)
            if (on_disk := self.on_disk(parsed)) is not None:
                return on_disk, known
        return None, known

    def entry_of(self, path: str) -> ManifestEntry | None:
        """The entry in models.toml of a file in the cache."""
        try:
            first = Path(path).absolute().relative_to(self.root.absolute()).parts[0]
        except (ValueError, IndexError, OSError):  # OSError: the working directory is gone
            return None
        return self.manifest.of_repo("/".join(first.split("--")[1:]))

    def built_in(self, name: str) -> Path:
        """A built-in model's path, of a pair the target's. Raises NotFoundError without the demo model."""
        return DemoStore(self.environ).require() if name == DEMO else EMBEDDED_TARGET

    def _path(self, parsed: ParsedName, argument: str) -> str:
        name, path = parsed.name, os.path.expanduser(parsed.file or parsed.name)
        if os.path.isdir(path):
            hint = f"name a .gguf file in it; or have {MODELS_DIR} name the folder: its files are names then"
            raise UsageError(f"{argument}: {name} is a folder", hint)
        if os.path.exists(path):
            return path
        if parsed.file:
            raise self.gone(parsed).prefixed(f"{argument}: ")
        if alike := self.called(name):
            what = f"{argument}: {name} is the name of {counted(len(alike), 'file')}"
            raise NotFoundError(what, f"give the path: {' or '.join(alike)}")
        similar = self.manifest.similar(name) if "/" not in name else []
        hint = "give the path of a GGUF file, a repository as user/repo:Q4_K_M, or a name: specllama models"
        if similar:
            hint = f"did you mean {' or '.join(similar)}? all names: specllama models"
        raise NotFoundError(f"{argument}: there is no file {name}, and no model of that name", hint)
