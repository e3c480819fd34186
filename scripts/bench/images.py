"""Images against llama-server, on the same files: the first token, a stream meanwhile, and the next turn.

usage: python -m scripts.bench.images --llama-server PROGRAM [--pairs 8] [--side 448] [--threads N]
           [--model FILE --mmproj FILE]
       python -m scripts.bench.images --gain [--model FILE [--draft FILE]] [--runs 3] [--threads N]

Without files: the demo model with a projector of random weights, of InternVL's kind and in the shape of
SigLIP base (12 layers of width 768, 256 rows an image of 448 pixels). Starts both servers, on free ports of
this machine. Prints lines of JSON: the seconds to the first token of a prompt with an image that was never
seen, of both servers in turn, and the median of the ratios; the longest gap of a stream of our server while
nothing else happens, and while images are encoded; what the second turn of a conversation evaluates.

--gain: how much drafts gain behind an image and without one, in the same text. The projector's rows are the
embeddings of the tokens that the image has drawn, so what a model writes after a prompt whose beginning is an
image is what it writes after the text. Prints for each prompt the decode time per token without drafts over
that with drafts, medians of all runs. Run nothing else on the machine.
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
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import httpx2
import numpy as np
from PIL import Image

from scripts import cli
from specllama.gguf.header import read_model
from specllama.models.demo import DemoStore

SECONDS = 900.0  # of an answer
WIDTH, LAYERS, FF, HEADS, PATCH, SCALE = 768, 12, 3072, 12, 14, 2
TEXT_SIDE, CELL = 8, 10  # the image that is a text: tokens of its side, and pixels of a token's
SOURCES = Path(__file__).parents[2] / "specllama" / "core"  # of prompts


def write_projector(path: Path, n_embd: int, side: int) -> Path:
    """A projector of random weights. n_embd: of the model. side: of the images, in pixels."""
    rng = np.random.default_rng(0)
    sizes = {
        "image_size": side, "patch_size": PATCH, "embedding_length": WIDTH,
        "feed_forward_length": FF, "block_count": LAYERS, "projection_dim": n_embd,
        "attention.head_count": HEADS, "projector.scale_factor": SCALE,
    }  # fmt: skip
    w = projector_writer(path, "internvl", sizes, 0.5, 0.5)

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
    return written(w, path)


def projector_writer(
    path: Path, kind: str, sizes: dict[str, int], mean: float, std: float
) -> gguf.GGUFWriter:
    w = gguf.GGUFWriter(str(path), "clip")
    w.add_type("mmproj")
    w.add_name(f"{kind} of {__name__}")
    w.add_bool("clip.has_vision_encoder", True)
    w.add_bool("clip.use_gelu", True)
    w.add_string("clip.projector_type", kind)
    for key, value in sizes.items():
        w.add_uint32(f"clip.vision.{key}", value)
    w.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    w.add_array("clip.vision.image_mean", [mean] * 3)
    w.add_array("clip.vision.image_std", [std] * 3)
    return w


def written(w: gguf.GGUFWriter, path: Path) -> Path:
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def write_text_projector(path: Path, model: Path, ids: list[int]) -> Path:
    """The projector for which an image is a text: exactly the embeddings of its tokens, each of which is the
    one of 300 bytes that is 255 (`text_picture`). ids: all that images can have.
    """
    (table,) = (t for t in gguf.GGUFReader(str(model)).tensors if t.name == "token_embd.weight")
    embeddings = gguf.dequantize(table.data[ids], table.tensor_type)
    n, n_embd = 3 * CELL**2, embeddings.shape[1]
    sizes = {
        "image_size": TEXT_SIDE * CELL, "patch_size": CELL, "embedding_length": n, "feed_forward_length": 1,
        "block_count": 1, "projection_dim": n_embd, "attention.head_count": 1,
    }  # fmt: skip
    w = projector_writer(path, "mlp", sizes, 0.0, 1.0)
    columns = np.zeros((n_embd, n), np.float32)
    columns[:, : len(ids)] = embeddings.T / 16  # GELU leaves 0 and 16 as they are
    for name, x in {
        "v.patch_embd.weight": 16 * np.eye(n).reshape(n, 3, CELL, CELL),
        "v.position_embd.weight": np.zeros((TEXT_SIDE**2, n)),
        "mm.0.weight": np.eye(n), "mm.0.bias": np.zeros(n),
        "mm.2.weight": columns, "mm.2.bias": np.zeros(n_embd),
        "v.blk.0.attn_out.weight": np.zeros((1, n)),  # this and the next ones are not computed
        "v.blk.0.ffn_up.weight": np.zeros((1, n)), "v.blk.0.ffn_down.weight": np.zeros((n, 1)),
    }.items():  # fmt: skip
        w.add_tensor(name, np.ascontiguousarray(x, np.float32))
    return written(w, path)


def text_picture(ids: list[int], known: list[int]) -> str:
    """The PNG, in base64, of an image of these tokens. known: those of the projector."""
    pixels = np.zeros((TEXT_SIDE, CELL, TEXT_SIDE, CELL, 3), np.uint8)
    for i, token in enumerate(ids):
        colour, y, x = np.unravel_index(known.index(token), (3, CELL, CELL))
        pixels[i // TEXT_SIDE, y, i % TEXT_SIDE, x, colour] = 255
    file = io.BytesIO()
    Image.fromarray(pixels.reshape(TEXT_SIDE * CELL, TEXT_SIDE * CELL, 3)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


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
        story = [{"role": "user", "content": f"Tell a long story, number {n_images}."}]
        with ThreadPoolExecutor(1) as thread:
            stream = thread.submit(ask, ours, story, 400)
            for i in range(n_images):
                ask(ours, seen(picture(100 + i, given.side)), 2)
            times, _, _ = stream.result()
        gaps.append(round(max(b - a for a, b in pairwise(times[1:])), 3))
    yield {"longest_gap": {"alone": gaps[0], "with_images": gaps[1]}}
    chat = seen(picture(200, given.side))
    _, text, last = ask(ours, chat, 8)
    chat += [{"role": "assistant", "content": text}, {"role": "user", "content": "And now?"}]
    _, _, next_turn = ask(ours, chat, 2)
    counts = [one["usage"]["prompt_tokens"] for one in (last, next_turn)]
    cached = next_turn["usage"]["prompt_tokens_details"]["cached_tokens"]
    yield {"second_turn": {"first_prompt": counts[0], "prompt": counts[1], "evaluated": counts[1] - cached}}


def post(url: str, path: str, **body: Any) -> dict[str, Any]:
    answer = httpx2.post(f"{url}/{path}", json=body, timeout=SECONDS)
    if answer.status_code != 200:
        raise cli.BadInput(f"{url}/{path}: {answer.text[:500]}")
    return dict(answer.json())


def prompts(url: str) -> list[tuple[list[int], str, str]]:
    """(the ids that are the image, their text, the text after it) of the beginnings of some source files."""
    made = []
    for name in ("verify", "stats", "decoder", "interfaces"):
        text = (SOURCES / f"{name}.py").read_text("utf-8")
        ids = post(url, "tokenize", content=text, add_special=False)["tokens"]
        n = TEXT_SIDE**2
        begin, rest = (post(url, "detokenize", tokens=some)["content"] for some in (ids[:n], ids[n : 4 * n]))
        made.append((ids[:n], begin, rest))
    return made


def measure_gain(
    url: str, asked: list[tuple[list[int], str, str]], known: list[int], n_runs: int
) -> Iterator[dict[str, Any]]:
    """The lines of --gain. known: the ids of the projector."""
    for ids, begin, rest in asked:
        image = {"prompt_string": "<__media__>" + rest, "multimodal_data": [text_picture(ids, known)]}
        made: dict[tuple[bool, bool], list[dict[str, Any]]] = {}
        for _ in range(n_runs):
            for with_image in (True, False):
                for speculative in (False, True):
                    body: dict[str, Any] = {"n_predict": 128, "temperature": 0, "ignore_eos": True}
                    body |= {"speculation": {"enabled": speculative, "memory": False}}
                    got = post(url, "completion", prompt=image if with_image else begin + rest, **body)
                    made.setdefault((with_image, speculative), []).append(got)
        ms = {
            kind: statistics.median(a["timings"]["predicted_per_token_ms"] for a in answers)
            for kind, answers in made.items()
        }
        answers = [a for some in made.values() for a in some]
        figures = {
            name: {
                "gain": round(ms[kind, False] / ms[kind, True], 3),
                "accepted": [a["timings"].get("draft_n_accepted", 0) for a in made[kind, True]],
                "drafted": [a["timings"].get("draft_n", 0) for a in made[kind, True]],
            }
            for name, kind in (("image", True), ("text", False))
        }
        yield {
            **figures,
            "ratio": round(figures["image"]["gain"] / figures["text"]["gain"], 3),
            "same_text": len({a["content"] for a in answers}) == 1,
            "prompt_tokens": sorted({a["tokens_evaluated"] for a in answers}),
        }


def shown(lines: Iterator[dict[str, Any]]) -> None:
    for figures in lines:
        print(json.dumps(figures), flush=True)


def compare_gain(model: Path, given: Any, folder: Path) -> None:
    ours = [sys.executable, "-m", "specllama", "serve", "-m", str(model), "-t", str(given.threads)]
    ours += ["-c", "4096", "--parallel", "1", *(["-md", str(given.draft)] if given.draft else [])]
    with served([*ours, "--no-mmproj"], folder / "words.log") as url:
        asked = prompts(url)
    known = sorted({token for ids, _, _ in asked for token in ids})
    mmproj = write_text_projector(folder / "text.gguf", model, known)
    with served([*ours, "--mmproj", str(mmproj)], folder / "ours.log") as url:
        shown(measure_gain(url, asked, known, given.runs))


def compare(model: Path, given: Any, folder: Path) -> None:
    mmproj = given.mmproj
    if mmproj is None:
        n_embd = read_model(model).n_embd
        mmproj = write_projector(folder / "mmproj.gguf", n_embd, given.side)
    common = ["-m", str(model), "--mmproj", str(mmproj), "-t", str(given.threads), "-c", "8192"]
    ours = [sys.executable, "-m", "specllama", "serve", *common, "--parallel", "2"]
    theirs = [str(given.llama_server), *common, "-np", "2", "--no-webui", "--jinja"]
    with served(ours, folder / "ours.log") as a, served(theirs, folder / "theirs.log") as b:
        shown(measure(a, b, given))


def main() -> None:
    p = cli.parser(__doc__)
    p.add_argument("--llama-server", type=Path, help="llama.cpp's own program")
    p.add_argument("--gain", action="store_true", help="compare drafts behind an image and without one")
    p.add_argument("--pairs", type=cli.whole(2), default=8, help="images that both servers see")
    p.add_argument("--side", type=cli.whole(64), default=448, help="pixels of an image's side")
    p.add_argument("--threads", type=cli.threads, help="threads of each server")
    p.add_argument("--model", type=Path)
    p.add_argument("--mmproj", type=Path)
    p.add_argument("--draft", type=Path, help="of the model, for --gain")
    p.add_argument("--runs", type=cli.whole(1), default=3, help="of each prompt of --gain")
    given = p.parse_args()
    model = given.model or Path(DemoStore().path)
    if given.llama_server is None and not given.gain:
        p.error("give --llama-server or --gain")
    with tempfile.TemporaryDirectory() as folder:
        try:
            (compare_gain if given.gain else compare)(model, given, Path(folder))
        except cli.BadInput as problem:
            p.error(str(problem))


if __name__ == "__main__":
    main()
