"""Which images of requests are decoded, and what is said of the others."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image as pillow

from specllama.client.protocol import Image
from specllama.config.load import LoadSettings, ModelSettings
from specllama.errors import BusyError
from specllama.images import MAX_IMAGES
from specllama.models.catalogue import CatalogueModel
from specllama.server.dialects.shared import image_parts
from specllama.server.dialects.shared.fields import FieldError
from specllama.server.dialects.shared.image_parts import GivenImage, ImageReader, given_image
from specllama.server.models import ModelPool


def png(colour: str = "red") -> str:
    buffer = io.BytesIO()
    pillow.new("RGB", (3, 2), colour).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def given(*texts: str) -> list[GivenImage]:
    return [given_image(f"messages[{i}].param", f"messages[{i}].image", text) for i, text in enumerate(texts)]


def refused(texts: list[GivenImage], urls: bool = False) -> FieldError:
    async def read() -> None:
        await ImageReader(urls).read(texts)

    with pytest.raises(FieldError) as error:
        asyncio.run(read())
    return error.value


def test_images_are_read_in_order() -> None:
    async def read() -> None:
        images = await ImageReader(False).read(
            given(png("red"), f"data:image/png;base64,{png('blue')}", png())
        )
        assert [(one.width, one.height) for one in images] == [(3, 2)] * 3
        assert images[0] is images[2]
        assert images[0].marker != images[1].marker

    asyncio.run(read())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no image in it"),
        ("data:image/png,abc", "not in base64"),
        ("aGVsbG8=", "not an image"),
        ("file:///etc/passwd", "files of the server"),
        ("http://localhost/a.png", "--allow-image-urls"),
        ("HTTPS://example.org/a.png", "--allow-image-urls"),
    ],
)
def test_what_is_no_image(text: str, problem: str) -> None:
    error = refused(given(png(), text))
    assert problem in error.message
    assert error.message.startswith("messages[1].image: could not process image")
    assert error.details["param"] == "messages[1].param"


def test_private_addresses_are_not_read() -> None:
    assert "not a public address" in refused(given("http://127.0.0.1:1/a.png"), urls=True).message


def test_nothing_is_decoded_before_all_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_parts, "load_image_text", lambda _text: pytest.fail("decoded"))
    error = refused(given(*[png()] * (MAX_IMAGES + 17)))
    assert "at most 100 images, not 117" in error.message
    assert error.details["param"] == "messages[100].param"
    assert "not read" not in refused(given(png(), "http://example.org/a.png")).message


def test_the_pixels_of_a_request_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_parts, "MAX_ALL_PIXELS", 17)
    error = refused(given(*[png()] * 5))
    assert "million pixels together" in error.message
    assert error.details["param"] == "messages[2].param"


def test_the_last_images_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next turn of a conversation sends them again. Those of another key are not used."""
    monkeypatch.setattr(image_parts, "_MOST_KEPT", 40)
    reader = ImageReader(False)

    def read(colour: str, scope: str = "") -> Image:
        return asyncio.run(reader.read(given(png(colour)), scope))[0]

    first = weakref.ref(read("teal"))
    assert read("teal") is first()
    assert read("teal", "key 2") is not first()
    assert first() is not None, "two of them have 36 bytes"
    read("navy")
    gc.collect()
    assert first() is None


def test_of_tiny_images_only_some_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_parts, "MAX_IMAGES", 2)
    reader = ImageReader(False)
    colours = ("teal", "navy", "red", "green")
    made = [weakref.ref(asyncio.run(reader.read(given(png(colour))))[0]) for colour in colours]
    gc.collect()
    assert [image() is not None for image in made] == [False, False, True, True]


def test_a_model_that_is_being_loaded_may_read_images() -> None:
    """Else the first request with large images would be refused."""
    model = CatalogueModel("m", "m.gguf", (), 0, 0.0)
    for mmproj, sees in (("mmproj-m.gguf", True), ("none", False), ("", False)):
        load = LoadSettings(target=ModelSettings(path="m.gguf"), mmproj=mmproj)
        pool: Any = SimpleNamespace(settings=SimpleNamespace(load=load, others=None))
        assert ModelPool.sees(pool, model, None) is sees


def test_images_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_parts, "MAX_HELD", 100)

    async def read() -> None:
        reader = ImageReader(False)
        first = asyncio.create_task(reader.read(given(png())))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await reader.read(given(png()))
        assert len(await first) == 1
        assert len(await reader.read(given(png()))) == 1

    asyncio.run(read())
