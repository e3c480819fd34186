"""What a server is started with. Plain data; secrets in it are never shown."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from specllama.config import defaults
from specllama.config.load import LoadSettings
from specllama.errors import UsageError

ANY_NAME = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """names: what clients may call the model, the first one is shown, "*" stands for any. keys: API keys, one
    of which a client has to send; none needed without. queue: texts that may wait for a slot. seconds: that a
    request may take, 0 for no limit. drain_seconds: that what runs may take to its end after a SIGTERM.
    client_seconds: that a client may take to send its request, or leave what it was sent unread.
    hosts, origins: names of this server and web pages that are let in beside those of the address itself.
    sampling, variables: of requests that bring none. Raises UsageError.
    """

    load: LoadSettings
    host: str = defaults.HOST
    port: int = defaults.PORT
    names: tuple[str, ...] = ()
    keys: tuple[str, ...] = field(default=(), repr=False)
    queue: int = defaults.QUEUE
    seconds: float = defaults.TIMEOUT_SECONDS
    drain_seconds: float = defaults.DRAIN_SECONDS
    client_seconds: float = defaults.CLIENT_SECONDS
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    log_prompts: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise UsageError(f"--port must be from 0 to 65535, not {self.port}")
        if not 0 <= self.queue <= 100_000:
            raise UsageError(f"--queue must be from 0 to 100000, not {self.queue}")
        for flag, seconds in (("--timeout", self.seconds), ("--drain", self.drain_seconds)):
            if not 0 <= seconds <= 1e9:
                raise UsageError(f"{flag} must be seconds from 0, not {seconds:g}")
        if not 0 < self.client_seconds <= 1e6:
            raise UsageError(f"--client-timeout must be seconds above 0, not {self.client_seconds:g}")
        if not self.host.strip() or "\0" in self.host:
            raise UsageError("--host needs an address or the name of one")
        if not self.keys and not is_loopback(self.host):
            raise UsageError(
                f"--host {self.host} can be reached from other machines, which needs a key",
                "give --api-key or --api-key-file, or leave --host away",
            )

    @property
    def name(self) -> str:
        """What the model is called."""
        shown = [name for name in self.names if name != ANY_NAME]
        return shown[0] if shown else PurePath(self.load.target.path).name.removesuffix(".gguf")

    def serves(self, name: str) -> bool:
        """Whether a client may call the model so."""
        return name == self.name or name in self.names or ANY_NAME in self.names


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
