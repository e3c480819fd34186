"""The hub and the way to it as they fail: rows 1 to 15 and 19 of the list of faults, with the real command.

Each: the exit code, one clear line, nothing lost, nothing left behind.
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
from pathlib import Path

import pytest

from tests.support import ggufbytes as g
from tests.support.command import MAIN, Command, Result
from tests.support.hub import LocalHub, Repo

NAME, FILE = "user/model-GGUF", "model-Q4_K_M.gguf"
SMALL = g.llama(n_layer=1, tokens=g.words(40)).build()
LARGE = g.llama(n_layer=30, n_embd=128, n_ff=256, tokens=g.words(40), type_id=0).build()
ETAG = hashlib.sha256(LARGE).hexdigest()
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 4212345678\n"


class Puller:
    """The command with a hub, and what is in its cache."""

    def __init__(self, command: Command, hub: LocalHub) -> None:
        self.command, self.hub, self.started = command, hub, list[subprocess.Popen[bytes]]()
        self.cache = command.home / ".cache" / "huggingface" / "hub"
        self.blobs = self.cache / "models--user--model-GGUF" / "blobs"

    def __call__(self, *args: str, env: dict[str, str | None] | None = None, **more: float) -> Result:
        return self.command(*args, env={**self.hub.environ(), **(env or {})}, **more)

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        self.started.append(self.command.start(*args, env=self.hub.environ()))
        return self.started[-1]

    def contents(self) -> list[str]:
        """Names in blobs, locks and links left out."""
        return sorted(p.name for p in self.blobs.iterdir()) if self.blobs.exists() else []

    def leftovers(self) -> list[str]:
        """What a download that is over must not leave."""
        ends = (".incomplete", ".tmp", ".json")
        return [str(p) for p in self.cache.rglob("*") if p.name.endswith(ends)]

    def wait_for(self, n_bytes: int) -> int:
        """Until so many bytes have arrived; how many it is."""
        partial, ends = self.blobs / f"{ETAG}.incomplete", time.monotonic() + 60
        while time.monotonic() < ends:
            have = partial.stat().st_size if partial.exists() else 0
            if have >= n_bytes:
                return have
            time.sleep(0.01)
        raise AssertionError("it never came that far")


@pytest.fixture
def pull(command: Command, hub: LocalHub) -> Iterator[Puller]:
    hub.repos[NAME] = Repo({"README.md": b"# model", FILE: LARGE})
    puller = Puller(command, hub)
    yield puller
    for process in puller.started:
        process.kill()
        process.communicate()


def refused(result: Result, code: int, *needles: str) -> None:
    """One error for people: the code, what the needles say, no traceback, nothing on stdout."""
    assert result.code == code, result.err
    assert result.raw == b""
    assert "Traceback" not in result.err
    assert sum(line.startswith("error: ") for line in result.lines) == 1, result.err
    for needle in needles:
        assert needle in result.err, (needle, result.err)


def whole(pull: Puller, result: Result) -> None:
    """The file is there, linked, right, and nothing else is."""
    assert result.code == 0, result.err
    assert Path(result.out.strip()).read_bytes() == LARGE
    assert pull.contents() == [ETAG]
    assert pull.leftovers() == []


def test_1_no_such_repository(pull: Puller) -> None:
    refused(pull("pull", "user/nothing"), 4, "user/nothing does not exist, or is private", "HF_TOKEN")
    known = {"HF_TOKEN": pull.hub.token}
    refused(pull("pull", "user/nothing", env=known), 3, "there is no repository user/nothing")
    refused(pull("run", "-m", "user/nothing", "-p", "x", env=known), 3, "there is no repository")
    refused(pull("pull", NAME, env={"HF_TOKEN": "hf_wrong"}), 4, "does not accept the token")
    pull.hub.repos[NAME].private = True
    refused(pull("pull", NAME), 4, "is private")
    whole(pull, pull("pull", NAME, env=known))


def test_2_gated(pull: Puller) -> None:
    pull.hub.repos[NAME].gated = True
    page = f"{pull.hub.endpoint}/{NAME}"
    refused(pull("pull", NAME), 4, f"{NAME} is gated", f"accept it at {page}", "HF_TOKEN")
    refused(pull("pair-check", NAME, NAME), 4, f"accept it at {page}")
    assert pull.contents() == []
    whole(pull, pull("pull", NAME, env={"HF_TOKEN": pull.hub.token}))
    sent = [a.headers.get("Authorization") for a in pull.hub.contents()]
    assert sent
    assert set(sent) == {None}  # another host, which must not see the token


def test_3_what_the_repository_lacks(pull: Puller) -> None:
    files = dict.fromkeys(("m-Q8_0.gguf", "m-Q2_K.gguf", "mmproj-F16.gguf", "imatrix.gguf"), SMALL)
    pull.hub.repos[NAME].files |= files
    result = pull("pull", f"{NAME}:Q5_K_M")
    refused(result, 3, "no quantisation 'Q5_K_M'", "there are: ")
    listed = result.err.split("there are: ")[1].split()
    assert sorted(q.strip(",") for q in listed) == ["Q2_K", "Q4_K_M", "Q8_0"]
    refused(pull("pull", f"{NAME}:nothing.gguf"), 3, "no file 'nothing.gguf'")
    refused(pull("pull", f"{NAME}@v2:Q4_K_M"), 3, "no revision 'v2'")
    pull.hub.repos["user/other"] = Repo({"README.md": b"x", "mmproj-F16.gguf": SMALL})
    refused(pull("pull", "user/other"), 3, "user/other has no GGUF model")


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_4_the_hub_is_down(pull: Puller) -> None:
    port = closed_port()
    proxies: dict[str, str | None] = {"HTTP_PROXY": f"http://127.0.0.1:{port}", "NO_PROXY": ""}
    ways: dict[str, dict[str, str | None]] = {
        "refused": {"HF_ENDPOINT": f"http://127.0.0.1:{port}"},
        "no such name": {"HF_ENDPOINT": "http://nowhere.invalid"},
        "no address": {"HF_ENDPOINT": "nonsense"},
        "a proxy that is down": {**proxies, "HF_ENDPOINT": "http://hub.invalid"},
        "a proxy that is none": {
            **proxies,
            "HTTP_PROXY": "nonsense://x",
            "HF_ENDPOINT": "http://hub.invalid",
        },
    }
    lines = [("pull", NAME), ("run", "-m", NAME, "-p", "x")]
    for env in ways.values():
        for result in pull.command.many(*lines, env={**pull.hub.environ(), **env}, timeout=40):
            refused(result, 5)
    pull.hub.faults.hang = 30.0
    refused(pull("pull", NAME, timeout=40), 5, "no response")
    pull.hub.faults.hang = 0.0
    pull.hub.faults.html = True
    refused(pull("pull", NAME), 5, "does not respond as a hub does")
    pull.hub.faults.html = False
    pull.hub.faults.api_statuses = [503] * 9
    refused(pull("pull", NAME, timeout=40), 5, "has a problem (503)")
    assert pull.contents() == []


def test_4_what_is_on_disk_is_used(pull: Puller) -> None:
    whole(pull, pull("pull", NAME))
    gone: dict[str, str | None] = {"HF_ENDPOINT": f"http://127.0.0.1:{closed_port()}"}
    again = pull("pull", NAME, env=gone)
    whole(pull, again)
    assert "is on disk and stays as it is" in again.err
    asked = len(pull.hub.asked)
    assert pull("pair-check", NAME, NAME, env=gone).code == 0
    assert pull("pair-check", NAME, NAME).code == 0
    assert len(pull.hub.asked) == asked  # what is on disk needs nobody


def test_5_offline(pull: Puller) -> None:
    off: dict[str, str | None] = {"HF_HUB_OFFLINE": "1"}
    for args in (("pull", NAME), ("run", "-m", NAME, "-p", "x"), ("pair-check", NAME, NAME)):
        refused(pull(*args, env=off), 5, f"{NAME} is not on disk", "HF_HUB_OFFLINE")
    assert pull.hub.asked == []
    whole(pull, pull("pull", NAME))
    asked = len(pull.hub.asked)
    whole(pull, pull("pull", NAME, env=off))
    assert len(pull.hub.asked) == asked


def test_6_too_many_requests(pull: Puller) -> None:
    pull.hub.faults.api_statuses = [(429, 1), 502]
    pull.hub.faults.statuses = [(429, 1), 503, 500]
    result = pull("pull", NAME)
    whole(pull, result)
    waits = [line for line in result.lines if "trying again in" in line]
    assert len(waits) == 5
    assert sum("(429); trying again in 1 s" in line for line in waits) == 2
    pull.hub.repos["user/other"] = Repo({FILE: SMALL})
    pull.hub.faults.api_statuses, pull.hub.faults.statuses = [(429, 1)], [(429, 1)]
    checked = pull("pair-check", "user/other", "user/other")
    assert (checked.code, checked.err.count("trying again in 1 s")) == (0, 2)


def test_6_a_server_that_never_gets_better(pull: Puller) -> None:
    pull.hub.faults.api_statuses = [(429, 5000)]
    refused(pull("pull", NAME), 5, "asks to wait 5000 s")
    assert pull.contents() == []


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_7_the_connection_is_cut(pull: Puller, share: float) -> None:
    n_sent = int(len(LARGE) * share)
    header = pull("pair-check", NAME, NAME).code
    assert header == 0
    pull.hub.sent, before = 0, len(pull.hub.asked)
    pull.hub.faults.cut = [len(LARGE), n_sent]  # of the header's request nothing is cut
    result = pull("pull", NAME)
    whole(pull, result)
    assert "trying again" in result.err
    starts = [a.headers.get("Range", "") for a in pull.hub.asked[before:] if a.host == "content"]
    assert starts[-1].startswith("bytes=")
    assert int(starts[-1][6:-1]) >= 0.99 * n_sent


@pytest.mark.alone  # the download must last until the signal
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_7_stopped_and_started_again(pull: Puller, how: signal.Signals) -> None:
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
    pull.hub.faults.rate = 0.0
    whole(pull, pull("pull", NAME))
    last = pull.hub.contents()[-1].headers
    assert last["Range"] == f"bytes={have}-"
    assert last["If-Range"].startswith('"content-')


def test_8_the_file_changes_between_attempts(pull: Puller) -> None:
    (pull.blobs).mkdir(parents=True)
    partial = pull.blobs / f"{ETAG}.incomplete"
    partial.write_bytes(LARGE[:100_000])
    other = LARGE[:-4] + b"ABCD"
    pull.hub.repos[NAME] = Repo({FILE: other}, commit="d" * 40)
    result = pull("pull", NAME)
    assert result.code == 0, result.err
    assert Path(result.out.strip()).read_bytes() == other
    assert pull.contents() == [hashlib.sha256(other).hexdigest()]  # the old beginning is gone
    assert "Range" not in pull.hub.contents()[-1].headers


def test_8_the_server_says_that_it_is_another_file(pull: Puller) -> None:
    pull.hub.faults.cut = [len(LARGE), len(LARGE) // 2]
    pull.hub.faults.etag = '"before"'
    pull.hub.faults.rate = len(LARGE) * 4
    process = pull.start("pull", NAME)
    pull.wait_for(len(LARGE) // 2)
    pull.hub.faults.etag = '"after"'
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert Path(out.decode().strip()).read_bytes() == LARGE
    assert pull.hub.contents()[-1].headers["If-Range"] == '"before"'
    assert pull.hub.sent >= len(LARGE) * 3 // 2  # all of it again


def test_8_a_damaged_beginning_is_found(pull: Puller) -> None:
    pull.blobs.mkdir(parents=True)
    (pull.blobs / f"{ETAG}.incomplete").write_bytes(b"\0" * 100_000)
    result = pull("pull", NAME)
    whole(pull, result)
    assert "the part of an earlier download is damaged" in result.err
    (pull.blobs / ETAG).unlink()
    (pull.blobs / f"{ETAG}.incomplete").write_bytes(LARGE + b"more")
    whole(pull, pull("pull", NAME))


def test_9_no_ranges(pull: Puller) -> None:
    pull.hub.faults.no_range = True
    pull.hub.faults.cut = [len(LARGE), len(LARGE) // 2]
    whole(pull, pull("pull", NAME))
    assert "Range" in pull.hub.contents()[-1].headers


WRONG: dict[str, Callable[[bytes], bytes]] = {
    "wrong bytes": lambda data: data[:-64] + bytes(63) + b"!",
    "truncated": lambda data: data[:-1000],
    "too long": lambda data: data + b"more",
}


@pytest.mark.parametrize("how", WRONG)
def test_10_wrong_content(pull: Puller, how: str) -> None:
    sent = WRONG[how](LARGE)
    pull.hub.faults.content = sent
    result = pull("pull", NAME)
    got = hashlib.sha256(sent).hexdigest()
    refused(result, 6, f"not {ETAG} of {len(LARGE)}", f"sha256 {got}", "it was removed")
    assert pull.contents() == []
    assert pull.leftovers() == []
    pull.hub.faults.content = None
    whole(pull, pull("pull", NAME))


def test_11_no_room(pull: Puller) -> None:
    huge = {"lfs": {"size": 10**15, "sha256": ETAG, "pointerSize": 134}}
    pull.hub.repos[NAME].said = {FILE: huge}
    result = pull("pull", NAME)
    refused(result, 8, "not enough room: 1000.0 TB are needed", "free in")
    assert not pull.cache.exists()  # nothing was even begun
    del pull.hub.repos[NAME].said[FILE]
    refused(pull("pull", NAME, env={"HF_HUB_CACHE": "/proc/nothing"}), 8, "HF_HUB_CACHE")
    below_a_file: dict[str, str | None] = {"HF_HUB_CACHE": f"{MAIN[0]}/cache"}
    refused(pull("pull", NAME, env=below_a_file), 8, "cannot be written", "HF_HUB_CACHE")


def test_11_the_disk_fills_up(pull: Puller) -> None:
    limited = f"ulimit -f {len(LARGE) // 2048}; exec {shlex.quote(sys.executable)} -m specllama pull {NAME}"
    env = pull.command.environment(pull.hub.environ())
    done = subprocess.run(
        ["bash", "-c", limited], capture_output=True, env=env, cwd=pull.command.home, timeout=60, check=False
    )
    result = Result(done.returncode, done.stdout, done.stderr.decode())
    refused(result, 8, "the disk is full", "bytes more", "free in")
    (partial,) = pull.contents()
    have = (pull.blobs / partial).stat().st_size
    assert have > len(LARGE) // 4
    whole(pull, pull("pull", NAME))
    assert pull.hub.contents()[-1].headers["Range"] == f"bytes={have}-"


def test_12_two_at_once(pull: Puller) -> None:
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


def test_13_split_models(pull: Puller) -> None:
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
    refused(damaged, 6, "big-Q4_K_M-00002-of-00003.gguf: part 2 of 3 is missing")


def test_13_parts_that_are_missing_or_foreign(pull: Puller) -> None:
    files = split_model(3)
    second = sorted(files)[1]
    pull.hub.repos["user/big"] = Repo({name: data for name, data in files.items() if name != second})
    for args in (("pull", "user/big:Q4_K_M"), ("run", "-m", "user/big:Q4_K_M", "-p", "x")):
        refused(pull(*args), 6, f"part {second} is missing")
    pull.hub.repos["user/big"] = Repo(
        {**files, second: split_model(4)["Q4_K_M/big-Q4_K_M-00002-of-00004.gguf"]}
    )
    refused(pull("pull", "user/big:Q4_K_M"), 6, f"{second}: not part 2 of this model")
    pull.hub.repos["user/big"] = Repo({**files, second: SMALL})
    refused(pull("pull", "user/big:Q4_K_M"), 6, second)
    assert not (pull.cache / "models--user--big").exists()


EVIL = ["hf:../../etc/passwd", "user/repo:a/../../x.gguf", "hf:user/repo:\x1b[2J.gguf", "x" * 5000]


def test_14_names_that_lead_elsewhere(pull: Puller) -> None:
    lines = [("pull", name) for name in EVIL]
    lines += [("run", "-p", "x", "-m", EVIL[0]), ("run", "-p", "x", "-hf", "../x"), ("models", "rm", EVIL[0])]
    for line, result in zip(lines, pull.command.many(*lines, env=pull.hub.environ()), strict=True):
        assert (result.code, result.raw) == (2, b""), (line, result.err)
        assert "Traceback" not in result.err
        assert "\x1b" not in result.err
        assert len(result.err) < 1000
    assert pull.hub.asked == []
    assert not pull.cache.exists()


def test_14_a_hub_that_lists_such_names(pull: Puller) -> None:
    size = {"lfs": {"size": 10, "sha256": ETAG, "pointerSize": 134}}
    bad = ["../../evil-Q4_K_M.gguf", "/abs-Q4_K_M.gguf", "a\0b-Q4_K_M.gguf", "x" * 5000 + "-Q4_K_M.gguf"]
    pull.hub.repos[NAME] = Repo({"good-Q8_0.gguf": LARGE}, said=dict.fromkeys(bad, size))
    result = pull("pull", NAME)
    assert result.code == 0, result.err
    assert result.out.strip().endswith("/good-Q8_0.gguf")
    made = {p for p in pull.command.home.rglob("*") if "evil" in p.name or "abs" in p.name}
    assert made == set()
    pull.hub.repos["user/other"] = Repo({"x-Q8_0.gguf": LARGE}, commit="../../../x")
    refused(pull("pull", "user/other"), 5, "does not respond as a hub does")
    lfs = {"lfs": {**size["lfs"], "sha256": "../../x"}}
    pull.hub.repos["user/other"] = Repo({FILE: LARGE}, said={FILE: lfs})
    refused(pull("pull", "user/other"), 3, "no GGUF model")


NO_MODELS = {
    "html": (b"<!DOCTYPE html><html>404</html>" * 99, "HTML"),
    "json": (b'{"error": "not found"}' * 99, "JSON"),
    "lfs": (LFS, "LFS"),
    "empty": (b"", "empty"),
    "magic": (b"GGML" + bytes(9999), "magic"),
    "version": (g.GGUF(version=99).build(), "version"),
    "unknown architecture": (g.llama(metadata={"general.architecture": "llamma"}).build(), "llamma"),
}


@pytest.mark.parametrize("kind", NO_MODELS)
def test_15_what_is_no_model_is_not_downloaded(pull: Puller, kind: str) -> None:
    data, needle = NO_MODELS[kind]
    pull.hub.repos[NAME].files[FILE] = data
    refused(pull("pull", NAME), 6, needle, FILE)
    assert pull.contents() == []


def test_19_vocabularies_differ(pull: Puller) -> None:
    other = g.llama(n_layer=1, tokens=[f"x{i}" for i in range(40)]).build()
    pull.hub.repos["user/draft"] = Repo({"draft-Q8_0.gguf": other}, commit="e" * 40)
    reason = "token 5 is 't5' in the target and 'x5' in the draft"
    for args in (
        ("pull", NAME, "user/draft"),
        ("run", "-m", NAME, "-md", "user/draft", "-p", "x"),
        ("run", "-hf", NAME, "-hfd", "user/draft:Q8_0", "-p", "x"),
        ("bench", "-m", NAME, "-md", "user/draft"),
    ):
        refused(pull(*args), 7, reason, "--force")
    assert not pull.cache.exists()
    checked = pull("pair-check", NAME, "user/draft", "--json")
    assert (checked.code, checked.json["first_difference"]["id"]) == (7, 5)
    forced = pull("pull", NAME, "user/draft", "--force")
    assert forced.code == 0
    assert f"warning: target and draft do not fit together: {reason}" in forced.err
    assert len(forced.out.splitlines()) == 2
    refused(pull("run", "-m", NAME, "-md", "user/draft", "-p", "x"), 7, reason)


def test_all_of_it_fits_a_terminal_without_width(pull: Puller) -> None:
    result = pull("pull", NAME, env={"COLUMNS": "20", "NO_COLOR": "1", "TERM": "dumb"})
    whole(pull, result)
    assert "\x1b" not in result.err
    assert os.environ.get("HF_ENDPOINT") != pull.hub.endpoint
