"""Measures downloads from a hub on loopback.

usage: python -m scripts.bench.pull                            # all measurements
       python -m scripts.bench.pull overhead --mb 2000 --runs 5
       python -m scripts.bench.pull check --vocabs DIR         # real vocabularies instead of generated ones

  overhead   time of a download over curl's
  resume     where a download resumes after a kill
  twice      bytes sent for two simultaneous downloads of a file
  check      bytes that a remote pair check reads

Needs curl and the packages of the tests (scripts/test installs them). Prints one JSON object on stdout and
text on stderr.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts import cli
from tests.support import ggufbytes as g
from tests.support.hub import LocalHub, Repo, local_hub
from tests.support.paths import ROOT

NAME, FILE = "user/model-GGUF", "model-Q4_K_M.gguf"


def model(n_bytes: int) -> bytes:
    """A GGUF file of about `n_bytes`, with random weights, so that nothing can compress it."""
    header = g.llama(n_layer=1, tokens=g.words(40))
    rows = max(1, n_bytes // 4096)
    header.tensors = [*header.tensors, g.Tensor("more.weight", (1024, rows), 0)]
    weights = header.data_bytes()
    block = random.Random(1).randbytes(min(weights, 64 << 20))
    return header.header() + (block * (weights // len(block) + 1))[:weights]


def environment(hub: LocalHub, home: Path) -> dict[str, str]:
    env = {**os.environ, **hub.environ(HF_HOME=str(home / "hf")), "HOME": str(home), "PYTHONPATH": str(ROOT)}
    return {k: v for k, v in env.items() if v is not None}


def pull(env: dict[str, str], *names: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "specllama", "pull", *names],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finished(process: subprocess.Popen[bytes]) -> None:
    _, err = process.communicate()
    if process.returncode:
        sys.exit(err.decode())


def overhead(hub: LocalHub, home: Path, n_mb: int, runs: int, rate: float) -> dict[str, Any]:
    """Seconds of a download by the library and by curl, in turn. Both write to disk; ours also syncs.

    rate: MB per second of the server, 0 for no limit.
    """
    hub.faults.rate = rate * 1e6
    data = model(n_mb * 10**6)
    hub.repos[NAME] = Repo({FILE: data})
    url = f"{hub.endpoint}/{NAME}/resolve/main/{FILE}"
    times: dict[str, list[float]] = {"curl": [], "specllama": [], "command": []}
    script = (
        "import time, sys\n"
        "from specllama.models.resolve import Library\n"
        "from specllama.models.hub.pull import download\n"
        "known = Library()\n"
        f"found = [known.on_hub(known.parse({NAME!r}, 'NAME'))]\n"
        "began = time.perf_counter()\n"
        "download(known, found)\n"
        "print(time.perf_counter() - began)\n"
    )
    for _ in range(runs):
        env = environment(hub, home)
        began = time.perf_counter()
        subprocess.run(["curl", "-sSLf", "-o", str(home / "by-curl"), url], check=True)
        times["curl"].append(time.perf_counter() - began)
        (home / "by-curl").unlink()
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        times["specllama"].append(float(done.stdout))
        shutil.rmtree(home / "hf")
        began = time.perf_counter()
        finished(pull(env, NAME))
        times["command"].append(time.perf_counter() - began)
        shutil.rmtree(home / "hf")
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = medians["specllama"] / medians["curl"]
    log(f"overhead: curl {medians['curl']:.2f} s, content {medians['specllama']:.2f} s ({ratio:.2f}), "
        f"whole command {medians['command']:.2f} s")  # fmt: skip
    return {"bytes": len(data), "seconds": times, "ratio": ratio}


def resume(hub: LocalHub, home: Path, n_mb: int) -> dict[str, Any]:
    """Kills a throttled download halfway; measures where the second one starts."""
    data = model(n_mb * 10**6)
    hub.repos[NAME] = Repo({FILE: data})
    hub.faults.rate, hub.faults.small_buffers = 50e6, True
    blobs = home / "hf" / "hub" / "models--user--model-GGUF" / "blobs"
    partial = blobs / f"{hashlib.sha256(data).hexdigest()}.incomplete"
    env = environment(hub, home)
    process = pull(env, NAME)
    while not partial.exists() or partial.stat().st_size < len(data) // 2:
        if process.poll() is not None:
            sys.exit(process.stderr.read().decode() if process.stderr else "it ended")
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    time.sleep(0.2)
    sent = hub.sent
    header = sum(
        int(a.headers["Range"].split("-")[1]) + 1 for a in hub.content_requests() if a.headers.get("Range")
    )
    received = sent - header
    hub.faults.rate, hub.faults.small_buffers = 0.0, False
    finished(pull(env, NAME))
    start = int(hub.content_requests()[-1].headers["Range"][6:-1])
    shutil.rmtree(home / "hf")
    log(f"resume: sent {received}, second transfer from {start} ({100 * start / received:.2f} %)")
    return {"bytes": len(data), "sent_before": received, "resumed_at": start, "share": start / received}


def twice(hub: LocalHub, home: Path, n_mb: int) -> dict[str, Any]:
    """Two simultaneous pulls of a file: how much content is sent."""
    data = model(n_mb * 10**6)
    hub.repos[NAME] = Repo({FILE: data})
    hub.faults.rate, hub.sent = 50e6, 0
    both = [pull(environment(hub, home), NAME) for _ in range(2)]
    for process in both:
        finished(process)
    hub.faults.rate = 0.0
    headers = [a.headers["Range"] for a in hub.content_requests() if a.headers.get("Range")]
    shutil.rmtree(home / "hf")
    log(f"twice: {hub.sent} bytes sent of a file of {len(data)} ({len(headers)} requests for its header)")
    return {
        "bytes": len(data),
        "sent": hub.sent,
        "content_requests": len(hub.content_requests()) - len(headers),
    }


def check(hub: LocalHub, home: Path, vocabs: Path | None) -> dict[str, Any]:
    """How much a remote pair check of two vocabularies of 128k tokens reads."""
    real = vocabs / "ggml-vocab-llama-bpe.gguf" if vocabs is not None else None
    if real is not None and real.is_file():
        data = real.read_bytes() + bytes(64 << 20)
    else:
        rng = random.Random(2)
        tokens = [f"{rng.randbytes(4).hex()[: rng.randint(3, 8)]}{i:x}" for i in range(128_256)]
        merges = [f"{rng.randbytes(3).hex()} {rng.randbytes(2).hex()}" for _ in range(280_147)]
        keys = g.vocab_metadata(tokens, merges=merges)
        data = g.llama(n_layer=16, tokens=tokens, metadata=keys).build()
    hub.repos[NAME] = Repo({FILE: data})
    hub.repos["user/draft-GGUF"] = Repo({"draft-Q8_0.gguf": data}, commit="c" * 40)
    hub.sent = 0
    line = [sys.executable, "-m", "specllama", "pair-check", NAME, "user/draft-GGUF", "--json"]
    began = time.perf_counter()
    done = subprocess.run(line, env=environment(hub, home), capture_output=True, text=True, check=True)
    seconds, found = time.perf_counter() - began, json.loads(done.stdout)
    log(
        f"check: {found['verdict']}, {found['target']['n_tokens']} tokens, "
        f"{hub.sent / 1e6:.1f} MB read, {seconds:.1f} s"
    )
    return {
        "sent": hub.sent,
        "n_tokens": found["target"]["n_tokens"],
        "real": real is not None,
        "seconds": seconds,
    }


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("what", nargs="*", help="overhead, resume, twice, check")
    parser.add_argument("--mb", type=int, default=200, help="size of the file")
    parser.add_argument("--runs", type=int, default=5, help="of overhead")
    parser.add_argument("--rate", type=float, default=100.0, help="MB/s in overhead, 0 for no limit")
    parser.add_argument("--vocabs", type=Path, help="directory with ggml-vocab-llama-bpe.gguf")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for what in args.what or ["overhead", "resume", "twice", "check"]:
        with local_hub() as hub, tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            match what:
                case "overhead":
                    results[what] = overhead(hub, home, args.mb, args.runs, args.rate)
                case "resume":
                    results[what] = resume(hub, home, args.mb)
                case "twice":
                    results[what] = twice(hub, home, args.mb)
                case "check":
                    results[what] = check(hub, home, args.vocabs)
                case _:
                    sys.exit(f"no such measurement: {what}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
