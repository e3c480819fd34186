"""Sockets of addresses, of paths, and those of systemd; messages to systemd."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from specllama.errors import NotFoundError, ResourceError, SpecllamaError, UsageError
from specllama.server import listening as module
from specllama.server.listening import check_form, host_of, inherited_socket, listening, notify

posix = pytest.mark.skipif(sys.platform == "win32", reason="unix sockets")


def opened(path: Path, keyed: bool = False) -> None:
    with listening(f"unix:{path}", 0, 30.0, keyed):
        pass


def test_the_url_has_the_port_that_was_free() -> None:
    with listening("127.0.0.1", 0, 30.0, False) as (listener, url):
        port = listener.getsockname()[1]
        assert (url, port > 0) == (f"http://127.0.0.1:{port}", True)
        with pytest.raises(ResourceError, match="is in use") as raised:
            listening("127.0.0.1", port, 30.0, False).__enter__()
        assert "port" in raised.value.hint


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"192\.0\.2\.1 is no address of this machine"):
        listening("192.0.2.1", 0, 30.0, False).__enter__()
    with pytest.raises(UsageError, match=r"999\.1\.1\.1 is no IP address, and no name that leads to one"):
        check_form("999.1.1.1")
    for host in ("http://127.0.0.1", "127.0.0.1:8080", "[::1", "::1]", "[[::1]]"):
        with pytest.raises(UsageError, match="is no IP address, and no name"):
            check_form(host)
    for host in ("127.1", "[::1]", "::1", "fe80::1%eth0", "unix:/tmp/a", "unix:/tmp/a]", "box.local"):
        check_form(host)


def test_a_privileged_port_gets_a_hint() -> None:
    assert "1024" in module._no_socket(PermissionError(errno.EACCES, "no"), "127.0.0.1", 80).hint


@posix
class TestPath:
    @pytest.mark.parametrize(("keyed", "mode"), [(False, 0o600), (True, 0o666)])
    def test_only_this_user_may_connect_without_a_key(self, tmp_path: Path, keyed: bool, mode: int) -> None:
        path, before = tmp_path / "s", os.umask(0)
        os.umask(before)
        with listening(f"unix:{path}", 0, 30.0, keyed) as (_, url):
            assert (url, stat.S_IMODE(path.stat().st_mode)) == (f"unix:{path}", mode)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
        assert not path.exists()
        assert os.umask(before) == before

    def test_the_socket_of_a_killed_server_is_replaced(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(tmp_path / "s"))
        opened(tmp_path / "s")

    def test_one_in_use_is_an_error_and_stays(self, tmp_path: Path) -> None:
        with listening(f"unix:{tmp_path / 's'}", 0, 30.0, False):
            with pytest.raises(ResourceError, match="it is in use") as raised:
                opened(tmp_path / "s")
            assert "another path" in raised.value.hint
            assert (tmp_path / "s").exists()

    def test_the_socket_of_a_successor_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "s"
        with listening(f"unix:{path}", 0, 30.0, False), socket.socket(socket.AF_UNIX) as successor:
            path.rename(tmp_path / "earlier")
            successor.bind(str(path))
        assert path.exists()

    @pytest.mark.parametrize(
        ("name", "error", "needle"),
        [
            ("file", ResourceError, "something else"),
            ("missing/s", NotFoundError, "directory of .* does not exist"),
            ("file/s", ResourceError, "Not a directory"),
            ("x" * 120, UsageError, "too many for a socket"),
        ],
    )
    def test_wrong_paths(self, tmp_path: Path, name: str, error: type[SpecllamaError], needle: str) -> None:
        (tmp_path / "file").write_text("precious")
        with pytest.raises(error, match=needle):
            opened(tmp_path / name)
        assert (tmp_path / "file").read_text() == "precious"


@posix
class TestSystemd:
    def test_a_state_is_sent_if_it_asks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(tmp_path / "notify"))
            manager.settimeout(30)
            monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
            notify("READY=1")
            assert manager.recv(100) == b"READY=1"

    @pytest.mark.parametrize("address", ["", "@", "relative", "/no/such/socket", "@specllama-no-such-socket"])
    def test_elsewhere_nothing_happens(self, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify("READY=1")

    def test_sockets_for_another_process_are_not_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LISTEN_PID", str(os.getppid()))
        monkeypatch.setenv("LISTEN_FDS", "1")
        assert inherited_socket() is None
        assert "LISTEN_FDS" not in os.environ

    @pytest.mark.parametrize("n", ["2", "x", "-1"])
    def test_several_are_an_error(self, monkeypatch: pytest.MonkeyPatch, n: str) -> None:
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        monkeypatch.setenv("LISTEN_FDS", n)
        with pytest.raises(UsageError, match="LISTEN_FDS has"):
            inherited_socket()

    @pytest.mark.parametrize("listens", [True, False])
    def test_one_that_listens_is_taken(self, monkeypatch: pytest.MonkeyPatch, listens: bool) -> None:
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        monkeypatch.setenv("LISTEN_FDS", "1")
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        if listens:
            one.listen()
        port = one.getsockname()[1]
        monkeypatch.setattr(module, "_INHERITED", one.detach())
        if not listens:
            with pytest.raises(UsageError, match="no listening socket"):
                inherited_socket()
            return
        passed = inherited_socket()
        assert passed is not None
        assert host_of(passed) == "127.0.0.1"
        with listening("127.0.0.1", 0, 30.0, False, passed) as (_, url):
            assert url == f"http://127.0.0.1:{port}"
