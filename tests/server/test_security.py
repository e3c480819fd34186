"""Who is let in, and what is not written down."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.command import Command, assert_error
from tests.support.serving import QUESTION, Server

KEY, OTHER = "sk-first-secret", "zweiter-schlüssel"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("locked")
    (home / "keys.txt").write_text(f"{KEY}\n\n{OTHER}\n", "utf-8")
    flags = ("--api-key-file", str(home / "keys.txt"), "--allowed-origin", "https://app.example", "-np", "1")
    with Server(home, *flags) as one:
        yield one


class TestKeys:
    @pytest.mark.parametrize(
        "headers",
        [
            {"Authorization": f"Bearer {KEY}"},
            {"authorization": f"bearer   {KEY} "},
            {"X-Api-Key": KEY},
            {"X-Api-Key": OTHER.encode().decode("latin-1")},
            {"Authorization": "Bearer wrong", "X-Api-Key": KEY},
        ],
    )
    def test_a_request_with_a_key_is_served(self, locked: Server, headers) -> None:
        assert locked.get("/v1/models", headers=headers).status == 200

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Authorization": f"Basic {KEY}"},
            {"Authorization": KEY},
            {"Authorization": "Bearer"},
            {"Authorization": "Bearer wrong"},
            {"X-Api-Key": KEY[:-1]},
            {"X-Api-Key": ""},
            {"X-Api-Key": "ÿ" * 1000},
            {"Cookie": f"key={KEY}"},
        ],
    )
    def test_a_request_without_a_key_is_refused(self, locked: Server, headers) -> None:
        for method, path in (
            ("GET", "/v1/models"),
            ("GET", "/metrics"),
            ("GET", "/nothing"),
            ("POST", "/props"),
        ):
            reply = locked.ask(method, path, headers=headers)
            assert reply.status == 401
            assert reply.error["type"] == "authentication_error"
            assert reply.headers["www-authenticate"] == "Bearer"
            assert KEY not in reply.body.decode()

    def test_health_is_open(self, locked: Server) -> None:
        assert locked.get("/health").status == 200

    def test_a_refusal_has_the_dialect_of_its_path(self, locked: Server) -> None:
        assert locked.post("/v1/messages", {}).json["error"]["type"] == "authentication_error"
        assert isinstance(locked.get("/api/tags").json["error"], str)

    def test_the_log_has_no_secrets(self, locked: Server) -> None:
        locked.post(
            f"/v1/chat/completions?key={KEY}",
            {"messages": [{"role": "user", "content": "my secret question"}], "max_tokens": 2},
            headers={"Authorization": f"Bearer {KEY}"},
        )
        locked.wait_for("/v1/chat/completions 200")
        output = "\n".join(locked.lines)
        assert KEY not in output
        assert "secret question" not in output


class TestPages:
    """Web pages in a browser on this machine."""

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "[x"]
    )
    def test_foreign_hosts_are_refused(self, server: Server, host: str) -> None:
        reply = server.get("/health", headers={"Host": host})
        assert reply.status in (400, 421)

    @pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:8080", "localhost."])
    def test_the_servers_own_hosts_are_accepted(self, server: Server, host: str) -> None:
        assert server.get("/health", headers={"Host": host}).status == 200

    @pytest.mark.parametrize(
        "origin", ["https://evil.example", "null", "http://localhost.evil.example:1", "file://"]
    )
    def test_foreign_origins_are_refused(self, server: Server, origin: str) -> None:
        for method in ("GET", "POST", "OPTIONS"):
            reply = server.ask(method, "/v1/chat/completions", headers={"Origin": origin})
            assert reply.status == 403
            assert not any(name.startswith("access-control") for name in reply.headers)

    def test_the_servers_own_origin_is_allowed(self, server: Server) -> None:
        reply = server.get("/v1/models", headers={"Origin": server.url})
        assert reply.status == 200

    @pytest.mark.parametrize(
        "origin",
        [
            "http://localhost:5173", "https://127.0.0.1:1", "http://[::1]:3000", "http://tauri.localhost",
            "app://obsidian.md", "tauri://localhost", "vscode-webview://0f",
        ],
    )  # fmt: skip
    def test_local_pages_are_allowed_unless_there_is_a_key(
        self, server: Server, locked: Server, origin: str
    ) -> None:
        asked = {"Origin": origin, "Access-Control-Request-Private-Network": "true"}
        reply = server.ask("OPTIONS", "/v1/chat/completions", headers=asked)
        assert reply.status == 204
        assert reply.headers["access-control-allow-origin"] == origin
        assert reply.headers["access-control-allow-private-network"] == "true"
        assert server.get("/v1/models", headers={"Origin": origin}).status == 200
        assert locked.ask("OPTIONS", "/v1/chat/completions", headers=asked).status == 403

    def test_an_allowed_origin(self, locked: Server) -> None:
        headers = {
            "Origin": "https://app.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type, x\x7f",
        }
        asked = locked.ask("OPTIONS", "/v1/chat/completions", headers=headers)
        assert asked.status == 204
        assert asked.headers["access-control-allow-origin"] == "https://app.example"
        assert asked.headers["access-control-allow-headers"] == "authorization, content-type"
        reply = locked.get(
            "/v1/models", headers={"Origin": "https://app.example", "Authorization": f"Bearer {KEY}"}
        )
        assert (reply.status, reply.headers["vary"]) == (200, "Origin")
        assert locked.get("/v1/models", headers={"Origin": "https://app.example"}).status == 401


def test_prompts_are_logged_only_on_request(tmp_path) -> None:
    with Server(tmp_path, "--log-prompts", "-np", "1") as one:
        one.chat([{"role": "user", "content": "line\nline"}], max_tokens=1)
        assert "line\\nline" in one.wait_for("prompt")


class TestCommandLine:
    @pytest.mark.parametrize(
        ("flags", "code", "needle"),
        [
            (("--host", "0.0.0.0"), 2, "--api-key"),
            (("--host", "::"), 2, "--api-key"),
            (("--host", "no such host"), 2, "no name that leads to one"),
            (("--host", "no such host", "--api-key", "x"), 2, "no such host"),
            (("--host", "192.0.2.1", "--api-key", "x"), 2, "192.0.2.1"),
            (("--host", ""), 2, "--host"),
            (("--port", "70000"), 2, "--port"),
            (("--port", "-1"), 2, "--port"),
            (("--port", "x"), 2, "port"),
            (("-np", "0"), 2, "-np"),
            (("-np", "100000"), 2, "-np"),
            (("--queue", "-1"), 2, "--queue"),
            (("--timeout", "-1"), 2, "--timeout"),
            (("--timeout", "nan"), 2, "--timeout"),
            (("--api-key", ""), 2, "key"),
            (("--api-key-file", "missing.txt"), 3, "missing.txt"),
            (("--api-key-file", "empty.txt"), 2, "no key"),
            (("--alias", ""), 2, "--alias"),
            (("-m", "missing.gguf"), 3, "missing.gguf"),
            (("-m", "empty.txt"), 6, "empty.txt"),
            (("--no-such-flag",), 2, "--no-such-flag"),
            (("--json",), 2, "--json"),
            (("--temp", "-1"), 2, "--temp"),
            (("--allowed-origin", "https://example.org/path"), 2, "--allowed-origin"),
            (("--allowed-origin", "a b"), 2, "http://localhost:3000"),
            (("--root-path", "/a?b"), 2, "--root-path"),
        ],
    )
    def test_settings_that_cannot_be_served_are_refused(self, tmp_path, flags, code, needle) -> None:
        (tmp_path / "empty.txt").write_text("\n")
        done = Command(tmp_path)("serve", *flags)
        assert_error(done, code, needle)

    def test_a_port_in_use(self, tmp_path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            done = Command(tmp_path)("serve", "--port", port)
        assert done.code == 8
        assert f"127.0.0.1:{port} is in use" in done.err
        assert "--port" in done.lines[-1]

    def test_help_has_examples(self, tmp_path) -> None:
        done = Command(tmp_path)("serve", "--help", env={"COLUMNS": "200"})
        assert done.code == 0
        for needle in ("specllama serve -m main.gguf", "--speculative-model", "--api-key-file", "-np"):
            assert needle in done.out


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_ipv6(tmp_path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with Server(tmp_path, "--host", "::1", "-np", "1") as one:
        assert one.get("/health").status == 200
        assert one.chat(QUESTION, max_tokens=2).status == 200
