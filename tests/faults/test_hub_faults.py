"""Faults of the hub and of the connection to it, with the real command.

Every fault gives its exit code and one clear error, loses no downloaded bytes and leaves no files.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support import ggufbytes as g
from tests.support.command import MAIN, Command, Result, assert_error
from tests.support.hub import LocalHub, Repo, local_hub
from tests.support.paths import ROOT

NAME, FILE = "user/model-GGUF", "model-Q4_K_M.gguf"
SMALL = g.llama(n_layer=1, tokens=g.words(40)).build()
LARGE = g.llama(n_layer=30, n_embd=128, n_ff=256, tokens=g.words(40), type_id=0).build()
ETAG = hashlib.sha256(LARGE).hexdigest()
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 4212345678\n"


class Puller:
    """The command with a local hub, and the contents of its cache."""

    def __init__(self, command: Command, hub: LocalHub) -> None:
        self.command, self.hub, self.started = command, hub, list[Any]()
        self.cache = command.home / ".cache" / "huggingface" / "hub"
        self.blobs = self.cache / "models--user--model-GGUF" / "blobs"

    def __call__(self, *args: str, env: dict[str, str | None] | None = None, **more: float) -> Result:
        return self.command(*args, env={**self.hub.environ(), **(env or {})}, **more)

    def start(self, *args: str) -> Any:
        self.started.append(self.command.start(*args, env=self.hub.environ(), fork=True))
        return self.started[-1]

    def contents(self) -> list[str]:
        """The names in blobs/."""
        return sorted(p.name for p in self.blobs.iterdir()) if self.blobs.exists() else []

    def leftovers(self) -> list[str]:
        """Files that a finished download must not leave."""
        ends = (".incomplete", ".tmp", ".json")
        return [str(p) for p in self.cache.rglob("*") if p.name.endswith(ends)]

    def wait_for(self, n_bytes: int) -> int:
        """Wait until `n_bytes` have arrived. Returns how many have."""
        partial, ends = self.blobs / f"{ETAG}.incomplete", time.monotonic() + 60
        while time.monotonic() < ends:
            have = partial.stat().st_size if partial.exists() else 0
            if have >= n_bytes:
                return have
            time.sleep(0.01)
        raise AssertionError(f"{n_bytes} bytes never arrived")


@pytest.fixture
def pull(command: Command, hub: LocalHub) -> Iterator[Puller]:
    hub.repos[NAME] = Repo({"README.md": b"# model", FILE: LARGE})
    puller = Puller(command, hub)
    yield puller
    for process in puller.started:
        process.kill()
        process.communicate()


def assert_complete(pull: Puller, result: Result) -> None:
    """The file is downloaded, linked and correct, and there is nothing else."""
    assert result.code == 0, result.err
    assert Path(result.out.strip()).read_bytes() == LARGE
    assert pull.contents() == [ETAG]
    assert pull.leftovers() == []


def test_an_unknown_repository_is_an_error(pull: Puller) -> None:
    assert_error(pull("pull", "user/nothing"), 4, "user/nothing does not exist, or is private", "HF_TOKEN")
    known = {"HF_TOKEN": pull.hub.token}
    assert_error(pull("pull", "user/nothing", env=known), 3, "there is no repository user/nothing")
    assert_error(pull("run", "-m", "user/nothing", "-p", "x", env=known), 3, "there is no repository")
    expired = pull("pull", NAME, env={"HF_TOKEN": "hf_wrong"})
    assert_error(expired, 4, "does not accept the token", "a public repository needs none")
    pull.hub.repos[NAME].private = True
    assert_error(pull("pull", NAME), 4, "is private")
    assert_complete(pull, pull("pull", NAME, env=known))


def test_a_gated_repository_is_an_error(pull: Puller) -> None:
    pull.hub.repos[NAME].gated = True
    page = f"{pull.hub.endpoint}/{NAME}"
    assert_error(pull("pull", NAME), 4, f"{NAME} is gated", f"accept it at {page}", "HF_TOKEN")
    assert_error(pull("pair-check", NAME, NAME), 4, f"accept it at {page}")
    assert pull.contents() == []
    assert_complete(pull, pull("pull", NAME, env={"HF_TOKEN": pull.hub.token}))
    sent = [a.headers.get("Authorization") for a in pull.hub.content_requests()]
    assert sent
    assert set(sent) == {None}  # another host, which must not receive the token


def test_a_missing_quantisation_file_or_revision_is_an_error(pull: Puller) -> None:
    files = dict.fromkeys(("m-Q8_0.gguf", "m-Q2_K.gguf", "mmproj-F16.gguf", "imatrix.gguf"), SMALL)
    pull.hub.repos[NAME].files |= files
    result = pull("pull", f"{NAME}:Q5_K_M")
    assert_error(result, 3, "no quantisation 'Q5_K_M'", "there are: ")
    listed = result.err.split("there are: ")[1].split()
    assert sorted(q.strip(",") for q in listed) == ["Q2_K", "Q4_K_M", "Q8_0"]
    assert_error(pull("pull", f"{NAME}:nothing.gguf"), 3, "no file 'nothing.gguf'")
    assert_error(pull("pull", f"{NAME}@v2:Q4_K_M"), 3, "no revision 'v2'")
    pull.hub.repos["user/other"] = Repo({"README.md": b"x", "mmproj-F16.gguf": SMALL})
    assert_error(pull("pull", "user/other"), 3, "user/other has no GGUF model")


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_an_unreachable_hub_is_an_error(pull: Puller) -> None:
    port = closed_port()
    lines = [("pull", NAME), ("run", "-m", NAME, "-p", "x")]
    down: dict[str, str | None] = {"NO_PROXY": "", "HF_ENDPOINT": "http://hub.invalid"}
    with local_hub() as silent, local_hub() as foreign, local_hub() as busy:
        silent.faults.hang, foreign.faults.html, busy.faults.api_statuses = 30.0, True, [503] * 99
        ways: list[tuple[dict[str, str | None], str]] = [
            ({"HF_ENDPOINT": f"http://127.0.0.1:{port}"}, ""),
            ({"HF_ENDPOINT": "http://nowhere.invalid"}, ""),
            ({"HF_ENDPOINT": "nonsense"}, ""),
            ({**down, "HTTP_PROXY": f"http://127.0.0.1:{port}"}, ""),
            ({**down, "HTTP_PROXY": "nonsense://x"}, ""),
            (silent.environ(), "no response"),
            (foreign.environ(), "does not respond as a hub does"),
            (busy.environ(), "has a problem (503)"),
        ]
        with ThreadPoolExecutor(len(ways)) as pool:  # most wait, between attempts or for a response
            envs = [{**pull.hub.environ(), **env} for env, _ in ways]
            asked = [pool.submit(pull.command.many, *lines, env=env, timeout=60) for env in envs]
        silent.faults.hang = 0.0
    for (_, needle), results in zip(ways, asked, strict=True):
        for result in results.result():
            assert_error(result, 5, needle)
    assert pull.contents() == []


def test_models_on_disk_need_no_hub(pull: Puller) -> None:
    assert_complete(pull, pull("pull", NAME))
    gone: dict[str, str | None] = {"HF_ENDPOINT": f"http://127.0.0.1:{closed_port()}"}
    again = pull("pull", NAME, env=gone)
    assert_complete(pull, again)
    assert "is on disk and stays as it is" in again.err
    n_requests = len(pull.hub.requests)
    assert pull("pair-check", NAME, NAME, env=gone).code == 0
    assert pull("pair-check", NAME, NAME).code == 0
    assert len(pull.hub.requests) == n_requests  # models on disk need no requests


def test_offline_mode_sends_no_requests(pull: Puller) -> None:
    off: dict[str, str | None] = {"HF_HUB_OFFLINE": "1"}
    for args in (("pull", NAME), ("run", "-m", NAME, "-p", "x"), ("pair-check", NAME, NAME)):
        assert_error(pull(*args, env=off), 5, f"{NAME} is not on disk", "HF_HUB_OFFLINE")
    tagged = f"{NAME}:Q8_0"
    assert_error(pull("run", "-m", tagged, "-p", "x", env=off), 5, f"specllama pull {tagged}")
    assert pull.hub.requests == []
    assert_complete(pull, pull("pull", NAME))
    n_requests = len(pull.hub.requests)
    assert_complete(pull, pull("pull", NAME, env=off))
    assert len(pull.hub.requests) == n_requests


def test_rate_limits_and_temporary_errors_are_retried(pull: Puller) -> None:
    pull.hub.faults.api_statuses = [(429, 1), 502]
    pull.hub.faults.statuses = [(429, 1), 503, 500]
    result = pull("pull", NAME)
    assert_complete(pull, result)
    waits = [line for line in result.lines if "trying again in" in line]
    assert len(waits) == 5
    assert sum("(429); trying again in 1 s" in line for line in waits) == 2
    pull.hub.repos["user/other"] = Repo({FILE: SMALL})
    pull.hub.faults.api_statuses, pull.hub.faults.statuses = [(429, 1)], [(429, 1)]
    checked = pull("pair-check", "user/other", "user/other")
    assert (checked.code, checked.err.count("trying again in 1 s")) == (0, 2)


def test_too_long_a_wait_is_an_error(pull: Puller) -> None:
    pull.hub.faults.api_statuses = [(429, 5000)]
    assert_error(pull("pull", NAME), 5, "asks to wait 5000 s")
    assert pull.contents() == []


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_a_broken_connection_is_resumed(pull: Puller, share: float) -> None:
    n_sent = int(len(LARGE) * share)
    header = pull("pair-check", NAME, NAME).code
    assert header == 0
    pull.hub.sent, before = 0, len(pull.hub.requests)
    pull.hub.faults.cut = [len(LARGE), n_sent]  # the request for the header is not cut
    result = pull("pull", NAME)
    assert_complete(pull, result)
    assert "trying again" in result.err
    starts = [a.headers.get("Range", "") for a in pull.hub.requests[before:] if a.host == "content"]
    assert starts[-1].startswith("bytes=")
    assert int(starts[-1][6:-1]) >= 0.99 * n_sent


@pytest.mark.alone  # the download must last until the signal
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_stopped_download_is_resumed(pull: Puller, how: signal.Signals) -> None:
    pull.hub.faults.rate, pull.hub.faults.small_buffers = len(LARGE) / 4, True
    process = pull.start("pull", NAME)
    pull.wait_for(len(LARGE) // 2)
    process.send_signal(how)
    out, err = process.communicate(timeout=60)
    assert process.returncode == {2: 130, 9: -9, 15: 143}[how]
    assert out == b""
    assert b"Traceback" not in err
    (partial,) = [p for p in pull.contents() if p.endswith(".incomplete")]
    have = (pull.blobs / partial).stat().st_size
    assert have >= len(LARGE) // 2
    assert (pull.blobs / partial).read_bytes() == LARGE[:have]
    pull.hub.faults.rate, pull.hub.faults.small_buffers = 0.0, False
    assert_complete(pull, pull("pull", NAME))
    last = pull.hub.content_requests()[-1].headers
    assert last["Range"] == f"bytes={have}-"
    assert last["If-Range"].startswith('"content-')


def test_a_file_changed_between_runs_is_downloaded_again(pull: Puller) -> None:
    (pull.blobs).mkdir(parents=True)
    partial = pull.blobs / f"{ETAG}.incomplete"
    partial.write_bytes(LARGE[:100_000])
    record = pull.cache / ".locks" / "models--user--model-GGUF" / f"{ETAG}.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"validator": "", "revision": "main"}')
    other = LARGE[:-4] + b"ABCD"
    pull.hub.repos[NAME] = Repo({FILE: other}, commit="d" * 40)
    result = pull("pull", NAME)
    assert result.code == 0, result.err
    assert Path(result.out.strip()).read_bytes() == other
    assert pull.contents() == [hashlib.sha256(other).hexdigest()]  # the old partial file is gone
    assert "Range" not in pull.hub.content_requests()[-1].headers


def test_a_download_of_another_revision_is_kept(pull: Puller) -> None:
    """Ctrl-C in one of an older revision, then the newest one: the first can still be resumed."""
    newer = LARGE[:-4] + b"ABCD"
    pull.hub.repos[NAME] = Repo({FILE: newer}, commit="d" * 40, branches={"old": "e" * 40})
    pull.hub.faults.rate, pull.hub.faults.small_buffers = len(LARGE) / 4, True
    pull.hub.repos[NAME].files[FILE] = LARGE
    stopped = pull.start("pull", f"{NAME}@old")
    pull.wait_for(50_000)
    stopped.send_signal(signal.SIGINT)
    stopped.communicate(timeout=60)
    pull.hub.faults.rate, pull.hub.faults.small_buffers = 0.0, False
    pull.hub.repos[NAME].files[FILE] = newer
    assert pull("pull", NAME).code == 0
    assert f"{ETAG}.incomplete" in pull.contents()
    pull.hub.repos[NAME].files[FILE] = LARGE
    result = pull("pull", f"{NAME}@old")
    assert Path(result.out.strip()).read_bytes() == LARGE
    assert pull.hub.content_requests()[-1].headers["Range"].startswith("bytes=")
    assert pull.leftovers() == []


@pytest.mark.parametrize("listed", ["sizes", "names"])
def test_a_mirror_without_hashes(pull: Puller, listed: str) -> None:
    pull.hub.faults.no_hashes = listed
    for args in (("pull", NAME), ("run", "-m", NAME, "-p", "x"), ("pair-check", NAME, NAME)):
        assert_error(pull(*args), 6, f"gives no hash for {FILE} of {NAME}", f"pull --no-verify {NAME}")
    assert pull.contents() == []
    result = pull("pull", "--no-verify", NAME)
    assert_complete(pull, result)
    assert f"warning: {pull.hub.endpoint} gives no hash" in result.err
    assert f"{FILE}: sha256 {ETAG}, recorded" in result.err
    assert pull("models", "verify", NAME).out.startswith("whole")
    n_sent = pull.hub.sent
    assert_complete(pull, pull("pull", "--no-verify", NAME))
    assert pull.hub.sent - n_sent < 1000  # it is on disk
    pull.hub.faults.no_length = pull.hub.faults.no_range = True
    pull("models", "rm", NAME)
    assert_error(pull("pull", "--no-verify", NAME), 6, f"gives no size for {FILE}")


def test_a_file_system_that_refuses_modes_and_syncing(pull: Puller) -> None:
    """As networks' file systems, and those of phones and Windows disks, do."""
    refuse = (
        "import errno, os, pathlib\n"
        "def refuse(*args, **more): raise OSError(errno.ENOTSUP, 'Operation not supported')\n"
        "os.chmod = os.fchmod = os.fsync = pathlib.Path.chmod = refuse\n"
    )
    (pull.command.home / "site").mkdir()
    (pull.command.home / "site" / "sitecustomize.py").write_text(refuse)
    env = {"PYTHONPATH": f"{pull.command.home / 'site'}{os.pathsep}{ROOT}"}
    assert_complete(pull, pull("pull", NAME, env=env))
    n_requests = len(pull.hub.content_requests())
    assert_complete(pull, pull("pull", NAME, env=env))
    assert len(pull.hub.content_requests()) == n_requests


def test_a_file_changed_during_the_download_is_downloaded_again(pull: Puller) -> None:
    pull.hub.faults.cut = [len(LARGE), len(LARGE) // 2]
    pull.hub.faults.etag = '"before"'
    pull.hub.faults.rate = len(LARGE) * 4
    process = pull.start("pull", NAME)
    pull.wait_for(len(LARGE) // 2)
    pull.hub.faults.etag = '"after"'
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert Path(out.decode().strip()).read_bytes() == LARGE
    assert pull.hub.content_requests()[-1].headers["If-Range"] == '"before"'
    assert pull.hub.sent >= len(LARGE) * 3 // 2  # all of it again


def test_a_damaged_partial_file_is_detected(pull: Puller) -> None:
    pull.blobs.mkdir(parents=True)
    (pull.blobs / f"{ETAG}.incomplete").write_bytes(b"\0" * 100_000)
    result = pull("pull", NAME)
    assert_complete(pull, result)
    assert "the part of an earlier download is damaged" in result.err
    (pull.blobs / ETAG).unlink()
    (pull.blobs / f"{ETAG}.incomplete").write_bytes(LARGE + b"more")
    assert_complete(pull, pull("pull", NAME))


def test_a_server_without_ranges_works(pull: Puller) -> None:
    pull.hub.faults.no_range = True
    pull.hub.faults.cut = [len(LARGE), len(LARGE) // 2]
    assert_complete(pull, pull("pull", NAME))
    assert "Range" in pull.hub.content_requests()[-1].headers


WRONG: dict[str, Callable[[bytes], bytes]] = {
    "wrong bytes": lambda data: data[:-64] + bytes(63) + b"!",
    "truncated": lambda data: data[:-1000],
    "too long": lambda data: data + b"more",
}


@pytest.mark.parametrize("how", WRONG)
def test_wrong_content_is_removed(pull: Puller, how: str) -> None:
    sent = WRONG[how](LARGE)
    pull.hub.faults.content = sent
    result = pull("pull", NAME)
    got = hashlib.sha256(sent).hexdigest()
    assert_error(result, 6, f"not {ETAG} of {len(LARGE)}", f"sha256 {got}", "it was removed")
    assert pull.contents() == []
    assert pull.leftovers() == []
    pull.hub.faults.content = None
    assert_complete(pull, pull("pull", NAME))


def test_too_little_disk_space_is_an_error(pull: Puller) -> None:
    huge = {"lfs": {"size": 10**15, "sha256": ETAG, "pointerSize": 134}}
    pull.hub.repos[NAME].overrides = {FILE: huge}
    result = pull("pull", NAME)
    assert_error(result, 8, "not enough room: 1000.0 TB are needed", "free in")
    assert not pull.cache.exists()  # nothing was written
    del pull.hub.repos[NAME].overrides[FILE]
    assert_error(pull("pull", NAME, env={"HF_HUB_CACHE": "/proc/nothing"}), 8, "HF_HUB_CACHE")
    below_a_file: dict[str, str | None] = {"HF_HUB_CACHE": f"{MAIN[0]}/cache"}
    assert_error(pull("pull", NAME, env=below_a_file), 8, "cannot be written", "HF_HUB_CACHE")


def test_a_disk_that_fills_up_is_an_error_and_resumed(pull: Puller) -> None:
    limited = f"ulimit -f {len(LARGE) // 2048}; exec {shlex.quote(sys.executable)} -m specllama pull {NAME}"
    env = pull.command.environment(pull.hub.environ())
    done = subprocess.run(
        ["bash", "-c", limited], capture_output=True, env=env, cwd=pull.command.home, timeout=60, check=False
    )
    result = Result(done.returncode, done.stdout, done.stderr.decode())
    assert_error(result, 8, "the disk is full", "bytes more", "free in")
    (partial,) = pull.contents()
    have = (pull.blobs / partial).stat().st_size
    assert have > len(LARGE) // 4
    assert_complete(pull, pull("pull", NAME))
    assert pull.hub.content_requests()[-1].headers["Range"] == f"bytes={have}-"


def test_two_downloads_at_once_share_one(pull: Puller) -> None:
    assert pull("pair-check", NAME, NAME).code == 0
    headers, pull.hub.sent = pull.hub.sent // 2, 0
    pull.hub.faults.rate = len(LARGE) / 3
    both = [pull.start("pull", NAME) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert Path(out.decode().strip()).read_bytes() == LARGE
    assert pull.contents() == [ETAG]
    assert pull.leftovers() == []
    assert pull.hub.sent <= len(LARGE) + 2 * headers


def split_model(n_parts: int) -> dict[str, bytes]:
    model = g.llama(n_layer=n_parts * 2, tokens=g.words(40))
    per, files = len(model.tensors) // n_parts + 1, {}
    for i in range(n_parts):
        meta = {
            "split.no": g.Typed("u16", i),
            "split.count": g.Typed("u16", n_parts),
            "split.tensors.count": g.Typed("i32", len(model.tensors)),
        }
        own = dict(model.metadata) if i == 0 else {}
        part = g.GGUF({**own, **meta}, model.tensors[i * per : (i + 1) * per])
        files[f"Q4_K_M/big-Q4_K_M-{i + 1:05d}-of-{n_parts:05d}.gguf"] = part.build()
    return files


def test_split_models_are_downloaded_as_a_whole(pull: Puller) -> None:
    files = split_model(3)
    pull.hub.repos["user/big"] = Repo({**files, "small-Q2_K.gguf": SMALL})
    result = pull("pull", "user/big:Q4_K_M")
    assert result.code == 0, result.err
    first = Path(result.out.strip())
    assert first.name == "big-Q4_K_M-00001-of-00003.gguf"
    assert {p.name: p.read_bytes() for p in first.parent.iterdir()} == {
        name.rpartition("/")[2]: data for name, data in files.items()
    }
    (
        pull.cache / "models--user--big" / "blobs" / hashlib.sha256(files[sorted(files)[1]]).hexdigest()
    ).unlink()
    damaged = pull("pair-check", str(first), str(first))
    assert_error(damaged, 6, "big-Q4_K_M-00002-of-00003.gguf: part 2 of 3 is missing")


def test_rejects_missing_or_foreign_parts(pull: Puller) -> None:
    files = split_model(3)
    second = sorted(files)[1]
    pull.hub.repos["user/big"] = Repo({name: data for name, data in files.items() if name != second})
    for args in (("pull", "user/big:Q4_K_M"), ("run", "-m", "user/big:Q4_K_M", "-p", "x")):
        assert_error(pull(*args), 6, f"the hub itself lacks {second}", "choose another quantisation")
    pull.hub.repos["user/big"] = Repo(
        {**files, second: split_model(4)["Q4_K_M/big-Q4_K_M-00002-of-00004.gguf"]}
    )
    assert_error(pull("pull", "user/big:Q4_K_M"), 6, f"{second}: not part 2 of this model")
    pull.hub.repos["user/big"] = Repo({**files, second: SMALL})
    assert_error(pull("pull", "user/big:Q4_K_M"), 6, second)
    assert not (pull.cache / "models--user--big").exists()


UNSAFE = ["hf:../../etc/passwd", "user/repo:a/../../x.gguf", "hf:user/repo:\x1b[2J.gguf", "x" * 5000]


def test_rejects_unsafe_names(pull: Puller) -> None:
    lines = [("pull", name) for name in UNSAFE]
    lines += [
        ("run", "-p", "x", "-m", UNSAFE[0]),
        ("run", "-p", "x", "-hf", "../x"),
        ("models", "rm", UNSAFE[0]),
    ]
    for result in pull.command.many(*lines, env=pull.hub.environ()):
        assert_error(result, 2)
        assert "\x1b" not in result.err
        assert len(result.err) < 1000
    assert pull.hub.requests == []
    assert not pull.cache.exists()


def test_ignores_unsafe_names_in_a_listing(pull: Puller) -> None:
    size = {"lfs": {"size": 10, "sha256": ETAG, "pointerSize": 134}}
    bad = ["../../evil-Q4_K_M.gguf", "/abs-Q4_K_M.gguf", "a\0b-Q4_K_M.gguf", "x" * 5000 + "-Q4_K_M.gguf"]
    pull.hub.repos[NAME] = Repo({"good-Q8_0.gguf": LARGE}, overrides=dict.fromkeys(bad, size))
    result = pull("pull", NAME)
    assert result.code == 0, result.err
    assert result.out.strip().endswith("/good-Q8_0.gguf")
    made = {p for p in pull.command.home.rglob("*") if "evil" in p.name or "abs" in p.name}
    assert made == set()
    pull.hub.repos["user/other"] = Repo({"x-Q8_0.gguf": LARGE}, commit="../../../x")
    assert_error(pull("pull", "user/other"), 5, "does not respond as a hub does")
    lfs = {"lfs": {**size["lfs"], "sha256": "../../x"}}
    pull.hub.repos["user/other"] = Repo({FILE: LARGE}, overrides={FILE: lfs})
    assert_error(pull("pull", "user/other"), 6, "gives no hash for")


NOT_MODELS = {
    "html": (b"<!DOCTYPE html><html>404</html>" * 99, "HTML"),
    "json": (b'{"error": "not found"}' * 99, "JSON"),
    "lfs": (LFS, "LFS"),
    "empty": (b"", "empty"),
    "magic": (b"GGML" + bytes(9999), "magic"),
    "version": (g.GGUF(version=99).build(), "version"),
    "unknown architecture": (g.llama(metadata={"general.architecture": "llamma"}).build(), "llamma"),
}


@pytest.mark.parametrize("kind", NOT_MODELS)
def test_files_that_are_not_models_are_not_downloaded(pull: Puller, kind: str) -> None:
    data, needle = NOT_MODELS[kind]
    pull.hub.repos[NAME].files[FILE] = data
    assert_error(pull("pull", NAME), 6, needle, FILE)
    assert pull.contents() == []


def test_a_pair_with_different_vocabularies_is_not_downloaded(pull: Puller) -> None:
    other = g.llama(n_layer=1, tokens=[f"x{i}" for i in range(40)]).build()
    pull.hub.repos["user/draft"] = Repo({"draft-Q8_0.gguf": other}, commit="e" * 40)
    reason = "token 5 is 't5' in the target and 'x5' in the draft"
    for args in (
        ("pull", NAME, "user/draft"),
        ("run", "-m", NAME, "-md", "user/draft", "-p", "x"),
        ("run", "-hf", NAME, "-hfd", "user/draft:Q8_0", "-p", "x"),
        ("bench", "-m", NAME, "-md", "user/draft"),
    ):
        assert_error(pull(*args), 7, reason, "--force")
    assert not pull.cache.exists()
    checked = pull("pair-check", NAME, "user/draft", "--json")
    assert (checked.code, checked.json["first_difference"]["id"]) == (7, 5)
    forced = pull("pull", NAME, "user/draft", "--force")
    assert forced.code == 0
    assert f"warning: target and draft do not fit together: {reason}" in forced.err
    assert len(forced.out.splitlines()) == 2
    assert_error(pull("run", "-m", NAME, "-md", "user/draft", "-p", "x"), 7, reason)


def test_it_works_in_a_narrow_terminal_without_colours(pull: Puller) -> None:
    result = pull("pull", NAME, env={"COLUMNS": "20", "NO_COLOR": "1", "TERM": "dumb"})
    assert_complete(pull, result)
    assert "\x1b" not in result.err
    assert os.environ.get("HF_ENDPOINT") != pull.hub.endpoint
