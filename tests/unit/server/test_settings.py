"""The settings of a server."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from specllama.config.load import LoadSettings, ModelSettings
from specllama.errors import UsageError
from specllama.server.settings import ServerSettings

LOAD = LoadSettings(target=ModelSettings(path="a/model.gguf"), n_slots=2)


class TestSettings:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.1.2.3"])
    def test_a_loopback_host_needs_no_key(self, host: str) -> None:
        assert ServerSettings(load=LOAD, host=host).host == host

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])
    def test_any_other_host_needs_a_key_which_repr_hides(
        self, host: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [()])  # it leads to something
        with pytest.raises(UsageError, match="key"):
            ServerSettings(load=LOAD, host=host)
        settings = ServerSettings(load=LOAD, host=host, keys=("secret",), metrics_key="secret")
        assert "secret" not in repr(settings)

    def test_a_host_that_is_none_is_said_before_a_key_is_asked_for(self) -> None:
        with pytest.raises(UsageError, match="no such host is no IP address, and no name that leads to one"):
            ServerSettings(load=LOAD, host="no such host")

    def test_a_key_for_the_figures_needs_another_one(self) -> None:
        with pytest.raises(UsageError, match="without keys"):
            ServerSettings(load=LOAD, metrics_key="secret")

    def test_the_name_of_the_model_is_the_first_name_or_that_of_its_file(self) -> None:
        plain = ServerSettings(load=LOAD, called=("8B",))
        named = ServerSettings(load=LOAD, names=("*", "a", "b"))
        assert (plain.name, *map(plain.has_name, ("model", "8B", "x"))) == ("model", True, True, False)
        assert all(map(plain.has_name, ("model:latest", "model.gguf", "model.gguf:latest", "8B:latest")))
        assert (named.name, *map(named.has_name, ("b", "model", "x"))) == ("a", True, False, False)
        assert tuple(plain.shown_names) == ("model",)

    @pytest.mark.parametrize(
        ("fields", "needle"),
        [({"models_max": -1}, "models_max must be from 0"), ({"idle_seconds": -1.0}, "idle_unload must be")],
    )
    def test_limits_of_models(self, fields: dict[str, Any], needle: str) -> None:
        with pytest.raises(UsageError, match=needle):
            ServerSettings(load=LOAD, **fields)

    def test_a_unix_socket_needs_no_key_and_a_path(self) -> None:
        assert ServerSettings(load=LOAD, host="unix:/run/x").host == "unix:/run/x"
        with pytest.raises(UsageError, match="unix:PATH"):
            ServerSettings(load=LOAD, host="unix:")
