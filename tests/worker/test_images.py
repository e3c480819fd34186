"""Models that see in the engine process: with drafts the text is that of plain decoding, images are read
once, and an image that is a text gives the text's answer.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specllama.client import protocol as m
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.core.image_rows import image_runs
from tests.support import tiny_mmproj, tinygguf, tinymtp
from tests.support.front import Front
from tests.worker.test_heads import assistant, blocks, eagle3, inside

pytestmark = pytest.mark.usefixtures("vision")
KINDS = {  # target, projector, draft
    "llama": (tinygguf.llama, tiny_mmproj.internvl, tinygguf.llama),
    "gemma3": (tinygguf.gemma3, tiny_mmproj.gemma3, tinygguf.llama),
    "qwen2vl": (tiny_mmproj.qwen2vl_text, tiny_mmproj.qwen2vl, tiny_mmproj.qwen2vl_text),
    "lfm2": (tinygguf.lfm2, tiny_mmproj.internvl, None),
    "eagle3": (eagle3, tiny_mmproj.internvl, None),
    "dflash": (blocks(0), tiny_mmproj.internvl, None),
    "assistant": (assistant, tiny_mmproj.internvl, None),
    "qwen35": (inside(tinymtp.qwen35, (0.0, 0.0, 0.0, 1.0)), tiny_mmproj.qwen3vl, None),
}
EXACT: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off", "n_threads": 1}


def image_of(folder: Path, rgb: bytes, width: int, height: int) -> m.Image:
    digest = hashlib.sha256(b"%d %d" % (width, height) + rgb).hexdigest()
    path = folder / digest
    path.write_bytes(rgb)
    return m.Image(digest, width, height, str(path))


def opened(folder: Path, kind: str, n_slots: int = 2) -> Front:
    make, make_projector, make_draft = KINDS[kind]
    if kind in ("eagle3", "dflash", "assistant", "qwen35"):
        target, draft = make(folder)
    else:
        target = make(folder / "model.gguf")
        draft = make_draft(folder / "draft.gguf", noise=0.2) if make_draft is not None else None
    mmproj = make_projector(folder / "projector.gguf")
    models = [
        ModelSettings(path=str(path), n_ctx=2048, **EXACT) if path is not None else None
        for path in (target, draft)
    ]
    assert models[0] is not None
    more = {"n_slots": n_slots, "mmproj": str(mmproj), "cache_disk": 0, "calibrate": False}
    settings = LoadSettings(target=models[0], draft=models[1], draft_max=4, **more)  # type: ignore[arg-type]
    front = Front(settings, Store(folder / "store"))
    assert isinstance(front.messages[-1], m.Ready), front.messages
    assert front.messages[-1].info.vision
    return front


@pytest.fixture(scope="module", params=KINDS)
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    front = opened(tmp_path_factory.mktemp(request.param), request.param)
    yield front
    front.close()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[m.Image]:
    folder = tmp_path_factory.mktemp("images")
    sizes = (40, 30), (24, 64), (64, 64)
    return [image_of(folder, tiny_mmproj.noise_image(w, h, i), w, h) for i, (w, h) in enumerate(sizes)]


def params(seed: int, temperature: float, n: int = 30) -> dict[str, Any]:
    return {"max_tokens": n, "seed": seed, "temperature": temperature, "ignore_eos": True}


def done(front: Front) -> m.Done:
    (one,) = (message for message in front.messages if isinstance(message, m.Done))
    return one


def prompts(images: list[m.Image]) -> list[dict[str, Any]]:
    """An image first, in the middle, at the end, and two in a chat."""
    a, b, c = images
    says = "the cat sat on the mat, the cat sat"
    chat = [
        {"role": "user", "content": f"{says} {a.marker} and {b.marker} on the"},
        {"role": "assistant", "content": "the mat"},
        {"role": "user", "content": f"{c.marker}{says} on"},
    ]
    return [
        {"prompt": f"{a.marker} {says} on the mat, the cat", "images": [a]},
        {"prompt": f"{says} {b.marker} {says}", "images": [b]},
        {"prompt": f"{says} {c.marker}", "images": [c]},
        {"messages": chat, "images": images},
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_do_not_change_what_is_written_of_images(front: Front, images, temperature) -> None:
    asked = [{**one, "params": params(i, temperature)} for i, one in enumerate(prompts(images))]
    plain = [front.ids(**one, speculate=False) for one in asked]
    n_drafted = 0
    for one, expected in zip(asked, plain, strict=True):
        assert front.ids(**one) == expected
        n_drafted += done(front).stats.n_drafted
        assert front.ids(**one, reuse=False) == expected
    assert n_drafted > 20
    assert front.ids_at_once(asked[:2]) == plain[:2]
    assert front.ids_at_once([asked[3], asked[2]]) == [plain[3], plain[2]]
    assert len(set(map(tuple, plain))) > 1


def test_a_conversation_evaluates_its_images_once(front: Front, images) -> None:
    a, b, _ = images
    chat: list[dict[str, Any]] = [{"role": "user", "content": f"{a.marker} what is {b.marker} this?"}]
    first = {"messages": chat, "images": [a, b], "params": params(1, 0.8)}
    text = front.text(**first)
    n_prompt = done(front).stats.n_prompt
    chat = [*chat, {"role": "assistant", "content": text}, {"role": "user", "content": "And now?"}]
    second = {"messages": chat, "images": [a, b], "params": params(2, 0.8)}
    got = front.ids(**second, follows=1)
    assert done(front).stats.n_reused >= n_prompt
    assert got == front.ids(**second, follows=1, reuse=False, speculate=False)


def test_answers_to_one_prompt_and_other_images_in_its_place(front: Front, images) -> None:
    a, b, _ = images
    ask = lambda image: {"prompt": f"look: {image.marker} it is", "images": [image]}  # noqa: E731
    alone = [front.ids(**ask(a), params=params(seed, 1.0), reuse=False) for seed in (1, 2)]
    front.messages.clear()
    front.core.handle(
        m.Generate(1, m.TextInput(text=ask(a)["prompt"], images=[a]), params(1, 1.0),
                   choices=[m.Choice(2, 1, 2)])
    )  # fmt: skip
    while front.core.busy:
        front.core.step()
    items = [i for message in front.messages if isinstance(message, m.Tokens) for i in message.items]
    assert [[t for i in items if i.id == id_ for t in i.ids] for id_ in (1, 2)] == alone
    other = front.ids(**ask(b), params=params(1, 1.0))
    (first, *_) = image_runs(front.prompt_ids(**ask(b)))
    assert done(front).stats.n_reused <= first[0]
    assert other == front.ids(**ask(b), params=params(1, 1.0), reuse=False, speculate=False)


def test_other_texts_go_on_while_an_image_is_encoded(front: Front, tmp_path: Path, monkeypatch) -> None:
    encoder, may_go = front.core.loaded.vision, threading.Event()
    encode = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda *given: may_go.wait(60) and encode(*given))
    image = image_of(tmp_path, tiny_mmproj.noise_image(40, 40, 9), 40, 40)
    front.messages.clear()
    front.core.handle(m.Generate(1, m.TextInput(f"a {image.marker}", [image]), params(1, 0.0), reuse=False))
    front.core.handle(m.Generate(2, m.TextInput("and on"), params(2, 0.0)))
    said = {m.Done: False, m.Prefilled: False}
    while not all(said.values()):  # the progress is reported every half second
        front.core.step()
        said |= {type(one): True for one in front.messages if getattr(one, "at_image", True)}
    assert done(front).id == 2
    assert front.core.step_due_in == 0.1
    may_go.set()
    while front.core.busy:
        front.core.step()
    assert front.messages[-1].id == 1
    assert front.messages[-1].stats.n_predict == 30


def test_what_is_asked_about_prompts_with_images(front: Front, images) -> None:
    chat = m.ChatInput([{"role": "user", "content": f"see {images[0].marker}!"}], images=[images[0]])
    front.messages.clear()
    front.core.handle(m.Render(1, chat))
    front.core.handle(m.CountTokens(2, chat))
    rendered, count = front.messages
    assert isinstance(rendered, m.QueriedText)
    assert isinstance(count, m.TokenCount)
    assert "see <__media__>!" in rendered.text
    front.text(messages=chat.messages, images=chat.images, params=params(1, 0), show_prompt=True)
    assert done(front).stats.n_prompt == count.n
    assert "see " in done(front).prompt
    assert done(front).prompt.count("<__media__>") >= 1


def test_bad_images_are_errors_of_their_request(front: Front, images, tmp_path: Path) -> None:
    gone = m.Image("f" * 64, 20, 20, str(tmp_path / "gone"))
    assert "cannot read the image" in front.fails(prompt=gone.marker, images=[gone])
    assert "is not in the prompt" in front.fails(prompt="nothing", images=[images[0]])
    huge = m.Image("e" * 64, 1, 60_000, str(tmp_path))
    assert "60000 pixels cannot be used" in front.fails(prompt=huge.marker, images=[huge])
    assert front.text(prompt="and on", params=params(1, 0))


def test_an_image_that_is_a_text_has_the_texts_answer(tmp_path: Path) -> None:
    """The projector of this model gives the embeddings of the tokens that the image has drawn."""
    target = tinygguf.llama(tmp_path / "model.gguf")
    mmproj = tiny_mmproj.text(tmp_path / "text.gguf", target)
    model = ModelSettings(path=str(target), n_ctx=1024, **EXACT)
    front = Front(LoadSettings(target=model, mmproj=str(mmproj), cache_disk=0), Store(tmp_path / "store"))
    tokens = list(range(60, 76))
    image = image_of(tmp_path, *tiny_mmproj.text_image(tokens))
    asked = {"prompt": f"here {image.marker} and there", "images": [image]}
    before, after = ([t for t in front.prompt_ids(prompt=text) if t] for text in ("here ", " and there"))
    for speculate in (False, True):
        seen = front.ids(**asked, params=params(0, 0.0), speculate=speculate)
        ids = [0, *before, *tokens, *after]
        assert seen == front.ids(ids=ids, params=params(0, 0.0), speculate=speculate)
    front.close()


def test_a_model_without_a_projector_says_so(tmp_path: Path, images) -> None:
    model = ModelSettings(path=str(tinygguf.llama(tmp_path / "model.gguf")), n_ctx=512, n_threads=1)
    front = Front(LoadSettings(target=model, cache_disk=0), Store(tmp_path / "store"))
    assert "without a projector" in front.fails(prompt=images[0].marker, images=[images[0]])
    assert isinstance(front.messages[0], m.Failed)
    front.close()
