"""Images in `run` and `chat`, with a tiny model and its projector."""

from __future__ import annotations

import pytest

from tests.support import tiny_mmproj, tinygguf
from tests.support.chats import chat, in_library, prompts, saved
from tests.support.command import Command
from tests.support.image_files import png

FEW = ("--no-calibrate", "--temp", "0", "-n", "6")
MODEL = ("-m", "vision.gguf")


@pytest.fixture(scope="module")
def seeing(vision: None, shared: Command) -> Command:  # noqa: ARG001
    """A command in a folder with the model, its projector, which is found by itself, and images."""
    tinygguf.llama(shared.home / "vision.gguf")
    tiny_mmproj.internvl(shared.home / "mmproj-vision.gguf")
    (shared.home / "one.png").write_bytes(png(40, 30, 50))
    (shared.home / "two.png").write_bytes(png(30, 40, 200))
    return shared


def test_images_are_a_part_of_the_prompt(seeing: Command) -> None:
    """Where the prompt says, whatever the form of the prompt; texts alone load no projector."""
    lines = [
        ("-p", "Look"), ("--image", "one.png", "-p", "Look"), ("--image", "one.png,two.png", "-p", "Look"),
        ("--image", "one.png", "--image", "two.png", "-p", "<__media__><__media__>Look"),
        ("--image", "one.png", "--raw", "-p", "Look"),
    ]  # fmt: skip
    results = seeing.many(*(("run", *MODEL, *FEW, "--compare", "--json", *line) for line in lines))
    assert [result.code for result in results] == [0] * len(lines), results[0].err
    assert [result.json.get("images") for result in results] == [None, 1, 2, 2, 1]
    text, one, both, placed, raw = (result.json["n_prompt"] for result in results)
    assert text < one < both == placed
    assert raw < one
    assert results[2].json["tokens"] == results[3].json["tokens"]
    assert all(result.json["compare"]["identical"] for result in results)
    assert ["reads images" in result.err for result in results] == [False, True, True, True, True]


def test_a_chat_keeps_its_images(seeing: Command) -> None:
    """Also once the originals are gone, and without evaluating them again in the same chat."""
    (seeing.home / "gone.png").write_bytes(png(40, 30, 50))
    args = (*MODEL, *FEW, "--image", "gone.png", "--name", "images")
    lines = ("/image two.png", "/image", "Look", "And now?", "/regen", "/save images.json")
    result = chat(seeing, *lines, args=args)
    assert result.code == 0, result.err
    assert result.err.count("gone.png (40 × 30) goes with the next message") == 2
    assert "two.png (30 × 40) goes with the next message" in result.err
    (first, _), (second, reused), *_ = prompts(result.err)
    assert reused >= first
    assert second < first
    (seeing.home / "gone.png").unlink()
    for content in (saved(seeing, "images.json"), in_library(seeing)):
        assert [image["name"] for image in content["messages"][0]["images"]] == ["gone.png", "two.png"]
        assert content["messages"][0]["content"] == "Look"
    again = chat(seeing, "/regen", args=("--continue", "images", *FEW))
    assert again.code == 0, again.err
    assert again.out == result.out.rsplit("\n\n", 1)[1]
    without = chat(seeing, "/regen", args=("--load", "images.json", *MODEL, *FEW, "--no-mmproj"))
    assert without.code == 0, without.err
    assert "this model reads no images; 2 of it are left out" in without.err
