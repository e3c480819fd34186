"""Images against llama-server, on the same files: the first token, a stream meanwhile, and the next turn.

usage: python -m scripts.bench.images --llama-server PROGRAM [--pairs 8] [--side 448] [--threads N]
           [--model FILE --mmproj FILE]

Without files: the demo model with a projector of random weights, of InternVL's kind and in the shape of
SigLIP base (12 layers of width 768, 256 rows an image of 448 pixels). Starts both servers, on free ports of
this machine. Prints lines of JSON: the seconds to the first token of a prompt with an image that was never
seen, of both servers in turn, and the median of the ratios; the longest gap of a stream of our server while
nothing else happens, and while images are encoded; what the second turn of a conversation evaluates; how much
drafts gain behind an image and without one, in the same text. Run nothing else on the machine.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import httpx2
import numpy as np
from PIL import Image

from scripts import cli
from specllama.models.demo import DemoStore

SECONDS = 900.0  # of an answer
WIDTH, LAYERS, FF, HEADS, PATCH, SCALE = 768, 12, 3072, 12, 14, 2
SAID = "Copy this text: The draft model proposes a few tokens, and the target model checks all of them. Text:"


def write_projector(path: Path, n_embd: int, side: int) -> Path:
    """A projector of random weights. n_embd: of the model. side: of the images, in pixels."""
    rng, w = np.random.default_rng(0), gguf.GGUFWriter(str(path), "clip")
    w.add_type("mmproj")
    w.add_name("random projector")
    w.add_bool("clip.has_vision_encoder", True)
    w.add_bool("clip.use_gelu", True)
    w.add_string("clip.projector_type", "internvl")
    for key, value in {
        "image_size": side, "patch_size": PATCH, "embedding_length": WIDTH,
        "feed_forward_length": FF, "block_count": LAYERS, "projection_dim": n_embd,
        "attention.head_count": HEADS, "projector.scale_factor": SCALE,
    }.items():  # fmt: skip
        w.add_uint32(f"clip.vision.{key}", value)
    w.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for name in ("mean", "std"):
        w.add_array(f"clip.vision.image_{name}", [0.5] * 3)

    def put(name: str, *shape: int, dtype: type = np.float16) -> None:
        scale = float(np.prod(shape[1:])) ** -0.5 if len(shape) > 1 else 0.02
        w.add_tensor(name, (rng.standard_normal(shape, np.float32) * scale).astype(dtype))

    put("v.patch_embd.weight", WIDTH, 3, PATCH, PATCH)
    put("v.patch_embd.bias", WIDTH, dtype=np.float32)
    put("v.class_embd", WIDTH, dtype=np.float32)
    put("v.position_embd.weight", (side // PATCH) ** 2 + 1, WIDTH, dtype=np.float32)
    for i in range(LAYERS):
        for name, n_out, n_in in (
            *((f"attn_{part}", WIDTH, WIDTH) for part in ("q", "k", "v", "out")),
            ("ffn_up", FF, WIDTH), ("ffn_down", WIDTH, FF),
        ):  # fmt: skip
            put(f"v.blk.{i}.{name}.weight", n_out, n_in)
            put(f"v.blk.{i}.{name}.bias", n_out, dtype=np.float32)
        for name in ("ln1", "ln2"):
            norm(w, f"v.blk.{i}.{name}")
    norm(w, "v.post_ln")
    norm(w, "mm.model.mlp.0", WIDTH * SCALE**2)
    for name, n_out, n_in in (("1", n_embd, WIDTH * SCALE**2), ("3", n_embd, n_embd)):
        put(f"mm.model.mlp.{name}.weight", n_out, n_in)
        put(f"mm.model.mlp.{name}.bias", n_out, dtype=np.float32)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def norm(w: gguf.GGUFWriter, name: str, n: int = WIDTH) -> None:
    w.add_tensor(f"{name}.weight", np.ones(n, np.float32))
    w.add_tensor(f"{name}.bias", np.zeros(n, np.float32))


RUN = secrets.randbits(64)  # prompts of an earlier run may be on the disk


def picture(seed: int, side: int) -> str:
    """A PNG that no server has seen, as a data: URL."""
    rng, file = np.random.default_rng([RUN, seed]), io.BytesIO()
    coarse = rng.integers(0, 256, (16, 16, 3), np.uint8)
    Image.fromarray(coarse).resize((side, side)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


@contextlib.contextmanager
def served(command: list[str], log: Path) -> Iterator[str]:
    """The address of a server of this command, with `--port` added, until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=out, stderr=out)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(httpx2.HTTPError):
                if httpx2.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            if process.poll() is not None:
                raise cli.BadInput(f"{command[0]} ended: {log.read_text(errors='replace')[-500:]}")
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def ask(
    url: str, messages: list[dict[str, Any]], n: int, **more: Any
) -> tuple[list[float], str, dict[str, Any]]:
    """(the time of the request, then of each piece; the text; its last chunk)."""
    body = {"messages": messages, "max_tokens": n, "temperature": 0, "ignore_eos": True, **more}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    times, text, last = [time.perf_counter()], "", dict[str, Any]()
    with httpx2.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=SECONDS) as answer:
        if answer.status_code != 200:
            raise cli.BadInput(f"{url}: {answer.read().decode()[:500]}")
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            last = json.loads(line[6:])
            said = last["choices"][0]["delta"].get("content") if last.get("choices") else None
            if said:
                times.append(time.perf_counter())
                text += said
    return times, text, last


def seen(url: str, text: str = "What is this?") -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


def measure(ours: str, theirs: str, given: Any) -> Iterator[dict[str, Any]]:
    ask(ours, seen(picture(1, given.side)), 2)
    ask(theirs, seen(picture(1, given.side)), 2)
    firsts: dict[str, list[float]] = {ours: [], theirs: []}
    for i in range(given.pairs):
        image = seen(picture(2 + i, given.side), f"{i}: what is this?")
        for url in (ours, theirs) if i % 2 else (theirs, ours):
            times, _, _ = ask(url, image, 2)
            firsts[url].append(times[1] - times[0])
    ratios = [a / b for a, b in zip(firsts[ours], firsts[theirs], strict=True)]
    yield {
        "first_token": [round(statistics.median(firsts[url]), 3) for url in (ours, theirs)],
        "first_token_ratio": round(statistics.median(ratios), 3),
        "first_token_ratios": [round(ratio, 3) for ratio in ratios],
    }
    gaps = []
    for n_images in (0, 4):
        got: list[list[float]] = []
        story = [{"role": "user", "content": f"Tell a long story, number {n_images}."}]
        stream = threading.Thread(target=lambda: got.append(ask(ours, story, 400)[0]))  # noqa: B023
        stream.start()
        for i in range(n_images):
            ask(ours, seen(picture(100 + i, given.side)), 2)
        stream.join()
        gaps.append(round(max(b - a for a, b in pairwise(got[0][1:])), 3))
    yield {"longest_gap": {"alone": gaps[0], "with_images": gaps[1]}}
    chat = seen(picture(200, given.side))
    _, text, last = ask(ours, chat, 8)
    chat += [{"role": "assistant", "content": text}, {"role": "user", "content": "And now?"}]
    _, _, next_turn = ask(ours, chat, 2)
    counts = [one["usage"]["prompt_tokens"] for one in (last, next_turn)]
    cached = next_turn["usage"]["prompt_tokens_details"]["cached_tokens"]
    yield {"second_turn": {"first_prompt": counts[0], "prompt": counts[1], "evaluated": counts[1] - cached}}
    gains = []
    for messages in (seen(picture(300, given.side), SAID), [{"role": "user", "content": SAID}]):
        runs = []
        for _ in range(3):
            for speculative in (False, True):
                how = {"enabled": speculative, "memory": False}
                times, text, _ = ask(ours, messages, 64, speculation=how)
                runs.append((speculative, times[-1] - times[1], text))
        plain, fast = (statistics.median(t for s, t, _ in runs if s is kind) for kind in (False, True))
        gains.append((round(plain / fast, 2), len({text for _, _, text in runs}) == 1))
    yield {"gain": {"with_image": gains[0][0], "without": gains[1][0], "same_texts": [g[1] for g in gains]}}


def main() -> None:
    p = cli.parser(__doc__)
    p.add_argument("--llama-server", type=Path, required=True, help="llama.cpp's own program")
    p.add_argument("--pairs", type=cli.whole(2), default=8, help="images that both servers see")
    p.add_argument("--side", type=cli.whole(64), default=448, help="pixels of an image's side")
    p.add_argument("--threads", type=cli.whole(1), help="threads of each server")
    p.add_argument("--model", type=Path)
    p.add_argument("--mmproj", type=Path)
    given = p.parse_args()
    model = given.model or Path(DemoStore().path)
    with tempfile.TemporaryDirectory() as folder:
        mmproj = given.mmproj
        if mmproj is None:
            n_embd = int(gguf.GGUFReader(str(model)).get_field("llama.embedding_length").contents())
            mmproj = write_projector(Path(folder) / "mmproj.gguf", n_embd, given.side)
        common = ["-m", str(model), "--mmproj", str(mmproj), "-t", str(given.threads), "-c", "8192"]
        ours = [sys.executable, "-m", "specllama", "serve", *common, "--parallel", "2"]
        theirs = [str(given.llama_server), *common, "-np", "2", "--no-webui", "--jinja"]
        logs = Path(folder) / "ours.log", Path(folder) / "theirs.log"
        with served(ours, logs[0]) as a, served(theirs, logs[1]) as b:
            try:
                for figures in measure(a, b, given):
                    print(json.dumps(figures), flush=True)
            except cli.BadInput as problem:
                p.error(str(problem))


if __name__ == "__main__":
    main()
