"""The settings of a server. Plain data; its repr shows no secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from specllama.config import defaults
from specllama.config.load import LoadSettings
from specllama.config.text_file import expanded
from specllama.errors import UsageError, option
from specllama.models.names import name_variants
from specllama.server.http.origins import Origins, root_path
from specllama.server.listening import addresses, check_form

ANY_NAME = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """names: of the model; the first is shown, "*" accepts any. called: more accepted names, not shown.
    strict_model: refuse other names on a server of a single model. keys: API keys, of which clients must
    send one; () requires none. admin_keys: keys that may unload models; () for the first key.
    metrics_key: a key for the metrics of all keys, "" for none. open_metrics: these metrics need no key.
    share_cache: reuse cached prefixes across keys. spm_infill: `protocol.Infill.suffix_first` of all
    requests. queue: texts that may wait for a slot. seconds: time limit of a request, 0 for none.
    drain_seconds: time for running requests to finish after SIGTERM. client_seconds: time for a client to
    send its request, and to read sent bytes. hosts, origins: accepted names of this server and origins of
    web pages, in addition to those of the address itself. sampling, variables, verbose: defaults of
    requests. allow_image_urls: images of requests may be addresses on the web. others: load settings of
    other models, with names instead of paths; None for a server of a single model. models_max: models in
    memory at once, 0 for as many as fit. idle_seconds: idle time after which a model is unloaded, 0 for
    never. slot_save_path: directory of slots saved by clients, "" for none. embedder: load settings of an
    embedding model that is served next to the model, with a path;
    embedder_called: the name by which it was given. Raises UsageError.
    """

    load: LoadSettings
    embedder: LoadSettings | None = None
    embedder_called: str = ""
    others: LoadSettings | None = None
    models_max: int = defaults.MODELS_MAX
    idle_seconds: float = 0.0
    host: str = defaults.HOST
    port: int = defaults.PORT
    names: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    strict_model: bool = False
    keys: tuple[str, ...] = field(default=(), repr=False)
    admin_keys: tuple[str, ...] = field(default=(), repr=False)
    metrics_key: str = field(default="", repr=False)
    open_metrics: bool = False
    share_cache: bool = False
    spm_infill: bool = False
    queue: int = defaults.QUEUE
    seconds: float = defaults.TIMEOUT_SECONDS
    drain_seconds: float = defaults.DRAIN_SECONDS
    client_seconds: float = defaults.CLIENT_SECONDS
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    root_path: str = ""
    slot_save_path: str = ""
    log_prompts: bool = False
    verbose: bool = False
    allow_image_urls: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, most in (("port", 65535), ("queue", 100_000), ("models_max", 1000)):
            if not 0 <= (value := getattr(self, name)) <= most:
                raise UsageError(f"must be from 0 to {most}, not {value}", option=name)
        for name, seconds in (
            ("timeout", self.seconds),
            ("drain", self.drain_seconds),
            ("idle_unload", self.idle_seconds),
        ):
            if not 0 <= seconds <= 1e9:
                raise UsageError(f"must be seconds from 0, not {seconds:g}", option=name)
        if not 0 < self.client_seconds <= 1e6:
            raise UsageError(f"must be seconds above 0, not {self.client_seconds:g}", option="client_timeout")
        if self.host.strip() in ("", defaults.UNIX) or "\0" in self.host:
            raise UsageError("needs an address, the name of one, or unix:PATH", option="host")
        if self.slot_save_path and not (path := expanded(self.slot_save_path)).is_dir():
            hint = "a file has this name: choose another one" if path.exists() else "create it"
            raise UsageError(f": there is no folder {self.slot_save_path}", hint, option="slot_save_path")
        for name in self.embedder_names:
            if self.has_name(name):
                raise UsageError(f"and {option('model')} are both called {name}", option="embeddings")
        Origins(self.origins)
        root_path(self.root_path)
        if not set(self.admin_keys) <= set(self.keys):
            raise UsageError("is not among the keys", option="admin_key")
        if self.metrics_key and not self.keys:
            raise UsageError(
                "without keys everybody may read the figures",
                f"give {option('api_key')} or {option('api_key_file')} too",
                option="metrics_key",
            )
        check_form(self.host)
        if not self.keys and not defaults.is_loopback(self.host):
            addresses(self.host)  # what leads nowhere needs no key
            raise UsageError(
                f"{self.host} can be reached from other machines, which needs a key",
                f"give {option('api_key_file')} or {option('api_key')}, or leave {option('host')} out",
                option="host",
            )

    @property
    def shown_names(self) -> Sequence[str]:
        """The model's names, the preferred one first."""
        shown = [name for name in self.names if name != ANY_NAME]
        return shown or [PurePath(self.load.target.path).name.removesuffix(".gguf")]

    @property
    def embedder_names(self) -> Sequence[str]:
        """The names of the embedding model, the preferred one first; () without one."""
        if self.embedder is None:
            return ()
        own = PurePath(self.embedder.target.path).name.removesuffix(".gguf")
        return tuple(dict.fromkeys(filter(None, (own, self.embedder_called))))

    @property
    def name(self) -> str:
        return self.shown_names[0]

    def has_name(self, name: str) -> bool:
        """Whether this is a name of the model, apart from "*"."""
        return not {*self.shown_names, *self.names, *self.called}.isdisjoint(name_variants(name))

    def names_embedder(self, name: str) -> bool:
        return not set(self.embedder_names).isdisjoint(name_variants(name))
