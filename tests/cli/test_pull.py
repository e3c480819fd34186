"""`specllama pull`, `models`, and models by name in the other commands, against a hub on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from tests.support import ggufbytes as g
from tests.support.command import ROOT, Command, Result, assert_error
from tests.support.hub import LocalHub, Repo

TARGET, DRAFT = EMBEDDED_TARGET.read_bytes(), EMBEDDED_DRAFT.read_bytes()
REPOS = "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "bartowski/Llama-3.2-1B-Instruct-GGUF"
FILES = "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "Llama-3.2-1B-Instruct-Q4_K_M.gguf"
HASHES = hashlib.sha256(TARGET).hexdigest(), hashlib.sha256(DRAFT).hexdigest()
ASK = ("-p", "What does zip do?", "-n", "8", "-s", "1", "--no-calibrate")


class Named:
    """The embedded pair, on a hub and under the names of a well-known one."""

    def __init__(self, command: Command, hub: LocalHub) -> None:
        self.command, self.hub = command, hub
        hub.repos[REPOS[0]] = Repo({"README.md": b"x", FILES[0]: TARGET, "m-Q8_0.gguf": TARGET})
        hub.repos[REPOS[1]] = Repo({FILES[1]: DRAFT}, commit="c" * 40)
        self.cache = command.home / ".cache" / "huggingface" / "hub"

    def __call__(self, *args: str, env: dict[str, str | None] | None = None) -> Result:
        result = self.command(*args, env={**self.hub.environ(), **(env or {})})
        assert "Traceback" not in result.err
        return result

    def link(self, which: int) -> Path:
        folder = f"models--{REPOS[which].replace('/', '--')}"
        return self.cache / folder / "snapshots" / self.hub.repos[REPOS[which]].commit / FILES[which]

    def python(self, code: str) -> str:
        """What a program with the real huggingface-hub prints."""
        env = self.command.environment(self.hub.environ(HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_XET="1"))
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def named(command: Command, hub: LocalHub) -> Named:
    return Named(command, hub)


def test_run_downloads_a_named_model_and_its_draft(named: Named) -> None:
    plain = named("run", *ASK, "-md", "none", "--drafters", "none", "-m", str(EMBEDDED_TARGET))
    first = named("run", "-m", "8B", "-md", "1B", *ASK)
    assert first.code == 0, first.err
    assert first.out == plain.out
    output = first.err
    assert f"8B: {REPOS[0]}/{FILES[0]}, 8.1 MB, licence: Llama 3.1 Community License" in output
    assert "9.4 MB to download into" in output
    assert "the vocabularies are identical: the same 4096 tokens" in output
    assert "of memory with a context of" in output
    assert "(vocabulary identical)" in output
    asked = len(named.hub.requests)
    again = named("run", "-m", "8B", *ASK)  # -md auto: the known draft is on disk now
    assert (again.code, again.out) == (0, plain.out)
    assert "draft pydoc-draft" in again.err
    assert len(named.hub.requests) == asked


def test_without_the_draft_it_says_that_one_is_known(named: Named) -> None:
    assert named("pull", "8B").code == 0
    result = named("run", "-m", "8B", *ASK)
    assert result.code == 0
    assert "a draft is known and not on disk: -md 1B downloads it" in result.err
    none = named("run", "-m", "8B", "-md", "none", *ASK)
    assert "a draft is known" not in none.err
    assert len(named.hub.content_requests()) == 2  # the header, the model


def test_the_layout_is_huggingface_hubs(named: Named) -> None:
    result = named("pull", "8B", "1B")
    assert result.out.splitlines() == [str(named.link(0)), str(named.link(1))]
    for which in (0, 1):
        assert os.readlink(named.link(which)) == f"../../blobs/{HASHES[which]}"
        ref = named.link(which).parents[2] / "refs" / "main"
        assert ref.read_text() == named.hub.repos[REPOS[which]].commit
    assert (named.cache / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f59")
    asked = len(named.hub.requests)
    printed = named.python(
        "from huggingface_hub import hf_hub_download, scan_cache_dir\n"
        f"print(hf_hub_download({REPOS[0]!r}, {FILES[0]!r}, local_files_only=True))\n"
        "info = scan_cache_dir()\n"
        "print(info.warnings, sorted(r.repo_id for r in info.repos), info.size_on_disk)"
    )
    assert printed.splitlines() == [
        str(named.link(0)),
        f"[] {sorted(REPOS)} {len(TARGET) + len(DRAFT)}",
    ]
    assert len(named.hub.requests) == asked


def test_what_huggingface_hub_downloaded_is_found(named: Named) -> None:
    code = f"from huggingface_hub import hf_hub_download as d\nprint(d({REPOS[1]!r}, {FILES[1]!r}))"
    assert named.python(code) == str(named.link(1))
    asked = len(named.hub.requests)
    checked = named("pair-check", "1B", "1B", "--json", env={"HF_HUB_OFFLINE": "1"})
    assert (checked.code, checked.json["target"]["path"]) == (0, str(named.link(1)))
    assert len(named.hub.requests) == asked


def test_names_of_all_kinds(named: Named) -> None:
    for name in ("8B", "llama-3.1-8B:Q8_0", REPOS[0], f"hf:{REPOS[0]}:q8_0", f"{REPOS[0]}:{FILES[0]}"):
        result = named("pull", name, "--dry-run", "--json")
        assert result.code == 0, result.err
        (model,) = result.json["models"]
        wanted = "m-Q8_0.gguf" if "8_0" in name.upper() else FILES[0]
        assert [f["path"] for f in model["files"]] == [wanted]
        assert (model["repo"], model["commit"]) == (REPOS[0], "a" * 40)
    assert not named.cache.exists()
    result = named("run", "-hf", f"{REPOS[0]}:Q8_0", "-hfd", REPOS[1], *ASK)
    assert result.code == 0, result.err
    assert "draft pydoc-draft" in result.err
    for flags in (("-hfr", "-hfrd"), ("--hf-repo", "--hf-repo-draft")):
        repos = flags[0], f"{REPOS[0]}:Q8_0", flags[1], REPOS[1]
        assert named("run", *repos, *ASK, env={"HF_HUB_OFFLINE": "1"}).out == result.out
    both = named("run", "-hf", REPOS[0], "-m", "8B", *ASK)
    assert (both.code, "-m and -hf are both given" in both.err) == (2, True)
    user = {"SPECLLAMA_CONFIG": str(named.command.home / "user.toml"), "HF_HUB_OFFLINE": "1"}
    (named.command.home / "user.toml").write_text('hf_repo = "user/nothing"\n')
    assert named("run", "-m", "8B:Q8_0", *ASK, env=user).code == 0  # the flag wins


def test_names_that_people_copy(named: Named) -> None:
    file = f"{REPOS[1]}/{FILES[1]}"
    names = (f"hf.co/{REPOS[1]}:Q4_K_M", f"{named.hub.endpoint}/{REPOS[1]}/blob/main/{FILES[1]}", file)
    for name in names:
        result = named("pull", name, "--dry-run", "--json")
        assert result.code == 0, result.err
        assert [f["path"] for f in result.json["models"][0]["files"]] == [FILES[1]]
    absent = named("run", "-m", "nobody/nothing/x.gguf", "-p", "x")
    assert absent.code in (3, 4)
    assert "there is no file nobody/nothing/x.gguf; " in absent.err
    asked = len(named.hub.requests)
    (named.command.home / "models").mkdir()
    path = named("run", "-m", "models/nothing/x.gguf", "-p", "x")
    assert (path.code, "there is no file models/nothing/x.gguf, and" in path.err) == (3, True)
    assert len(named.hub.requests) == asked  # paths of this disk are nobody's business


def test_a_dry_run(named: Named) -> None:
    result = named("pull", "8B", "1B", "--dry-run")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == f"8B: {REPOS[0]}/{FILES[0]}, 8.1 MB, not on disk"
    assert lines[2].startswith("9.4 MB to download into ")
    plan = named("pull", "8B", "1B", "--dry-run", "--json").json
    assert plan["schema"] == "specllama.pull-plan/1"
    assert plan["bytes"] == plan["missing"] == len(TARGET) + len(DRAFT)
    assert plan["models"][1]["files"][0] == {
        "path": FILES[1], "bytes": len(DRAFT), "have": 0, "hash": HASHES[1],
    }  # fmt: skip
    assert named.hub.content_requests() == []
    assert not named.cache.exists()
    named("pull", "1B")
    plan = named("pull", "8B", "1B", "--dry-run", "--json").json
    assert plan["missing"] == len(TARGET)


def test_the_object_of_pull(named: Named) -> None:
    result = named("pull", "1B", "--json")
    assert result.json == {
        "schema": "specllama.pull/1",
        "models": [{"name": "1B", "path": str(named.link(1))}],
    }
    again = named("pull", "1B")
    assert "all of it is on disk" in again.err
    assert len(named.hub.content_requests()) == 2


def test_a_newer_file_on_the_hub(named: Named) -> None:
    named("pull", "1B")
    named.hub.repos[REPOS[1]] = Repo({FILES[1]: TARGET}, commit="d" * 40)
    old = named("pair-check", "1B", "1B", "--json").json
    assert old["target"]["path"].endswith(f"/{'c' * 40}/{FILES[1]}")
    result = named("pull", "1B")
    assert result.out.strip() == str(named.link(1))
    assert named.link(1).read_bytes() == TARGET
    assert named("pair-check", "1B", "1B", "--json").json["target"]["path"] == str(named.link(1))


def test_a_revision(named: Named) -> None:
    named.hub.repos[REPOS[1]].branches["v1"] = "f" * 40
    result = named("pull", f"{REPOS[1]}@v1")
    assert result.code == 0, result.err
    assert f"/snapshots/{'f' * 40}/" in result.out
    assert named("pair-check", f"{REPOS[1]}@v1", f"{REPOS[1]}@v1").code == 0
    assert named("pair-check", REPOS[1], REPOS[1], env={"HF_HUB_OFFLINE": "1"}).code == 0


def test_files_outside_large_file_storage(named: Named) -> None:
    named.hub.repos["user/tiny"] = Repo({"tiny-Q8_0.gguf": DRAFT}, plain=frozenset({"tiny-Q8_0.gguf"}))
    result = named("pull", "user/tiny")
    assert result.code == 0, result.err
    assert Path(result.out.strip()).read_bytes() == DRAFT
    assert named("models", "verify", "user/tiny").code == 0


def test_a_remote_check_reads_the_headers_only(named: Named) -> None:
    words = [f"t{i:050d}" for i in range(128_256)]  # as many bytes as Llama 3's tokens and merges
    model = g.llama(tokens=words, metadata=g.vocab_metadata(words)).build()
    named.hub.repos["user/main"] = Repo({"main-Q4_K_M.gguf": model})
    named.hub.repos["user/draft"] = Repo({"draft-Q8_0.gguf": model}, commit="e" * 40)
    local = named.command.home / "main.gguf"
    local.write_bytes(model)
    remote = named("pair-check", "user/main", "user/draft", "--json")
    here = named("pair-check", str(local), str(local), "--json")
    assert (remote.code, here.code) == (0, 0)
    a, b = remote.json, here.json
    assert a["target"].pop("path") == "user/main/main-Q4_K_M.gguf"
    b["target"].pop("path")
    assert a["target"] == b["target"]
    assert (a["verdict"], a["reason"]) == (b["verdict"], b["reason"])
    assert named.hub.sent <= 24e6 < len(model)
    assert not named.cache.exists()


def test_the_token_is_for_the_hub_alone(named: Named) -> None:
    named.hub.repos[REPOS[1]].private = True
    assert named("pull", "1B", env={"HF_TOKEN": named.hub.token}).code == 0
    by_host = {"hub": set[str](), "content": set[str]()}
    for asked in named.hub.requests:
        by_host[asked.host].add(str(asked.headers.get("Authorization")))
    assert by_host == {"hub": {f"Bearer {named.hub.token}"}, "content": {"None"}}
    named.hub.requests.clear()
    (named.command.home / ".cache" / "huggingface" / "token").write_text(named.hub.token)
    assert named("pair-check", "8B", "8B").code == 0
    assert {a.headers.get("Authorization") for a in named.hub.content_requests()} == {None}


def test_models_may_be_named_in_a_file_of_the_project(named: Named) -> None:
    (named.command.home / "models.toml").write_text(
        f'[models.mine]\nrepo = "{REPOS[1]}"\nlicence = "mine"\n\n'
        '[[pairs]]\ntarget = "8B"\ndrafts = ["mine"]\n'
    )
    result = named("pull", "mine")
    assert result.out.strip() == str(named.link(1))
    assert "models: ./models.toml" in result.lines
    (named.command.home / "models.toml").write_text('[models.mine]\nrepo = "a/b"\naliases = ["8B"]\n')
    result = named("run", "-m", "8B", *ASK)
    assert_error(
        result,
        2,
        f"/models.toml, line 3: 8B is {REPOS[0]}:Q4_K_M, and a project cannot make it a/b",
        "/specllama/models.toml",
    )
    (named.command.home / "models.toml").write_text("[models.mine]\nrepp = 1\n")
    result = named("pull", "mine")
    assert result.code == 2
    assert "models.toml, line 2: repp: unknown key of mine" in result.err


def test_an_unknown_name_is_refused(named: Named) -> None:
    result = named("run", "-m", "qwen3-8", "-p", "x")
    assert result.code == 3
    assert "there is no file qwen3-8, and no model of that name" in result.err
    assert "did you mean qwen3-8b" in result.err
    (named.command.home / "main.gguf").write_bytes(TARGET)
    result = named("pull", "main.gguf")
    assert (result.code, "is a file already" in result.err) == (2, True)
    assert named("pull").code == 2


# specllama models


def test_the_list(named: Named) -> None:
    empty = named("models")
    empty_lines = empty.out.splitlines()
    assert empty_lines[0] == "used where no model is named: demo, else pydoc"
    assert f"no models in {named.cache}; specllama pull NAME downloads one" in empty_lines
    assert "llama-3.1-8b (8B)" in empty.out
    assert not any(line.rstrip().endswith(":") for line in empty.out.splitlines())
    offline = named("models", "show", "8B", env={"HF_HUB_OFFLINE": "1"})
    assert (offline.code, "about 4.8 GB, by its name" in offline.out) == (0, True)
    named("pull", "8B", "1B")
    (named.link(0).parents[2] / "blobs" / ("1" * 64 + ".incomplete")).write_bytes(b"x" * 5000)
    lines = named("models").out.splitlines()
    (row,) = [line for line in lines if REPOS[0] + ":Q4_K_M (8B)" in line]
    assert lines.index(row) < 5
    assert row.split()[2:] == ["8.1", "MB", "Q4_0", "2048", "yes", "Llama", "3.1", "Community", "License"]
    assert any(line.startswith(f"unfinished: {REPOS[0]}, 5.0 kB") for line in lines)
    report = named("models", "--json").json
    assert report["schema"] == "specllama.models/1"
    by_name = {model["alias"]: model for model in report["on_disk"]}
    assert by_name["8B"]["path"] == str(named.link(0))
    assert (by_name["8B"]["bytes"], by_name["8B"]["drafts"]) == (len(TARGET), ["1B"])
    assert by_name["1B"]["licence"] == "Llama 3.2 Community License"
    assert by_name["1B"]["n_ctx_train"] == 2048
    assert [u["bytes"] for u in report["unfinished"]] == [5000]
    known = {entry["name"]: entry for entry in report["known"]}
    assert known["llama-3.1-8b"]["on_disk"]
    assert not known["qwen3-8b"]["on_disk"]
    assert all(entry["source"] and entry["licence"] for entry in known.values())


def test_removing(named: Named) -> None:
    named("pull", "8B", "1B")
    named("pull", "8B:Q8_0")  # the same content under another name
    missing = named("models", "rm", "8B:Q2_K")
    assert_error(missing, 3, "on disk: ")
    result = named("models", "rm", "8B:Q4_K_M")
    assert result.code == 0
    assert "0 bytes freed" in result.out  # the other one still needs it
    assert named("models", "rm", "8B", "--json").json["removed"][0]["bytes"] == len(TARGET)
    assert not (named.cache / f"models--{REPOS[0].replace('/', '--')}").exists()
    assert named.link(1).exists()
    own = named.command.home / "main.gguf"
    own.write_bytes(TARGET)
    assert named("models", "rm", "main.gguf").code == 3
    assert own.exists()
    assert named("models", "rm", "1B").code == 0
    assert not named.link(1).exists()


def test_removing_what_is_unfinished(named: Named) -> None:
    blobs = named.link(1).parents[2] / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{HASHES[1]}.incomplete").write_bytes(DRAFT[:1000])
    result = named("models", "rm", "1B")
    assert (result.code, result.out) == (0, f"removed {REPOS[1]}, unfinished, 1.0 kB freed\n")
    assert list(blobs.glob("*")) == []


def test_verifying(named: Named) -> None:
    named("pull", "8B", "1B")
    good = named("models", "verify")
    assert (good.code, good.out.count("whole")) == (0, 2)
    blob = named.link(0).resolve()
    blob.write_bytes(TARGET[:-1] + b"!")
    bad = named("models", "verify", "--json")
    assert bad.code == 6
    assert [f["ok"] for f in bad.json["files"]] == [True, False]
    output = named("models", "verify", "8B")
    assert output.code == 6
    assert f"not {HASHES[0]}" in output.err
    assert "models rm" in output.err
    assert named("models", "verify", "1B").code == 0
    named("models", "rm", "8B")
    assert named("pull", "8B").code == 0
    assert named("models", "verify").code == 0


def test_the_python_api(named: Named) -> None:
    (named.command.home / "use.py").write_text(
        "import asyncio, json\n"
        "from specllama import LLM, AsyncLLM, SpecllamaError\n"
        "seen = []\n"
        "with LLM(model='8B', speculative_model='1B', progress=lambda n, s: seen.append((n, s))) as llm:\n"
        "    info = llm.info\n"
        "try:\n"
        "    LLM(model='user/nothing:Q8_0')\n"
        "except SpecllamaError as error:\n"
        "    missing = type(error).__name__\n"
        "async def other():\n"
        "    async with AsyncLLM(model='8B') as llm:\n"
        "        return llm.info['draft']['path']\n"
        "path, draft = info['target']['path'], asyncio.run(other())\n"
        "print(json.dumps([info['verdict'], path, seen[0][0], missing, draft]))\n"
    )
    env = named.command.environment({**named.hub.environ(), "PYTHONPATH": str(ROOT)})
    done = subprocess.run(
        [sys.executable, "-W", "error", "use.py"],
        capture_output=True, text=True, env=env, cwd=named.command.home, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    links = [str(named.link(i)) for i in (0, 1)]
    assert json.loads(done.stdout) == ["identical", links[0], "download", "AccessError", links[1]]
