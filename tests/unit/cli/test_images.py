"""Images of `run` and `chat`: which files are meant, where they stand in a prompt, saved conversations."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from specllama.cli.answer import MARKER, AttachedImage, attached, dropped, given_images, placed
from specllama.cli.chat.conversation import Conversation, Turn, read, write
from specllama.errors import NotFoundError, UsageError
from tests.support.image_files import png


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images, the current one and the home."""
    for i, name in enumerate(["one.png", "two words.png", "a,b.png", "it's.PNG", 'quo"te.png']):
        (tmp_path / name).write_bytes(png(i + 1))
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "note.txt").write_text("words")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("given", "widths"),
    [
        ([], []),
        (["one.png"], [1]),
        (["one.png", "two words.png"], [1, 2]),
        (["one.png,two words.png"], [1, 2]),
        (["a,b.png"], [3]),
        (['one.png,"a,b.png"'], [1, 3]),
        (['"a,b.png","quo""te.png",one.png'], [3, 5, 1]),
        (["~/one.png"], [1]),
    ],
)
def test_images_of_the_command_line(given: list[str], widths: list[int]) -> None:
    assert [one.image.width for one in given_images({"image": given})] == widths


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([""], "cannot be read"),
        (["one.png,"], "cannot be read"),
        (["."], "cannot be read"),
        (["text.png"], "not an image"),
        (["a\0.png"], "cannot be read"),
        (["one.png"] * 101, "at most 100 images, not 101"),
    ],
)
def test_what_is_no_image(given: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        given_images({"image": given})
    with pytest.raises(NotFoundError, match=r"none.png.* cannot be read: No such file"):
        given_images({"image": ["none.png"]})


@pytest.mark.usefixtures("folder")
def test_images_stand_before_the_prompt_or_where_it_says() -> None:
    images = [one.image for one in given_images({"image": ["one.png", "two words.png"]})]
    one, two = (image.marker for image in images)
    assert placed("Look", images) == f"{one}{two}Look"
    assert placed(f"From {MARKER} to {MARKER}.", images) == f"From {one} to {two}."
    assert placed(f"{MARKER}{MARKER}", images) == one + two
    assert placed(f"What does {MARKER} mean?", []) == f"What does {MARKER} mean?"
    with pytest.raises(UsageError, match="the prompt has 1 times <__media__>, for 2 images"):
        placed(f"Only {MARKER}", images)


@pytest.mark.parametrize(
    ("line", "text", "names"),
    [
        ("{}/one.png", "", ["one.png"]),
        ("  {}/one.png ", "", ["one.png"]),
        ("{}/two words.png", "", ["two words.png"]),
        ("'{}/two words.png'", "", ["two words.png"]),
        ('"{}/two words.png" ', "", ["two words.png"]),
        (r"{}/two\ words.png", "", ["two words.png"]),
        (r"{}/it\'s.PNG", "", ["it's.PNG"]),
        ("file://{}/two%20words.png", "", ["two words.png"]),
        ("file://localhost{}/one.png", "", ["one.png"]),
        ("~/one.png", "", ["one.png"]),
        ("What's this? {}/one.png", "What's this?", ["one.png"]),
        ("Compare '{0}/two words.png' {0}/one.png", "Compare", ["two words.png", "one.png"]),
        ("'{0}/one.png' '{0}/two words.png'", "", ["one.png", "two words.png"]),
        ("file://elsewhere{}/one.png", None, []),
        ("one.png", None, []),
        ("What is one.png", None, []),
        ("{}/none.png", None, []),
        ("{}/note.txt", None, []),
        ("Is {}/one.png a good name?", None, []),
        ("word{}/one.png", None, []),
        ("{}/one.png\nand more", None, []),
        ("/a\0.png", None, []),
        ("", None, []),
    ],
)
def test_paths_that_terminals_paste(folder: Path, line: str, text: str | None, names: list[str]) -> None:
    line = line.format(folder)
    found, paths = dropped(line)
    assert (found, [os.path.basename(path) for path in paths]) == (line if text is None else text, names)


def conversation(*images: AttachedImage) -> Conversation:
    turns = [Turn("Look", "A grey.", images=list(images)), Turn("And now?")]
    return Conversation(turns=turns, reads_images=True)


def test_a_conversation_keeps_the_images_in_its_file(folder: Path) -> None:
    """The original may be gone; a model that reads no images gets none."""
    talk = conversation(attached("one.png"))
    (image,) = talk.images()
    assert [m["content"] for m in talk.messages()] == [f"{image.marker}Look", "A grey.", "And now?"]
    assert talk.images(1) == []
    write("chat.json", talk)
    (folder / "one.png").unlink()
    again = read("chat.json")
    assert (again.images(), again.messages()[0]["content"]) == ([], "Look")
    again.reads_images = True
    assert (again.images(), again.messages()) == (talk.images(), talk.messages())
    (kept,) = again.turns[0].images
    assert (kept.name, str(kept)) == ("one.png", "one.png (1 × 1)")
    assert again.trim(1) == 1
    assert (again.images(), again.dropped[0].images) == ([], [])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("images", "why"),
    [
        (5, "images"),
        ([{"name": "a.png"}], "data"),
        ([{"name": "a.png", "data": "%%"}], r"messages\[0\]: images: data must be base64"),
        ([{"name": 5, "data": ""}], "name"),
    ],
)
def test_damaged_images_in_a_file(images: object, why: str) -> None:
    write("chat.json", conversation())
    content = json.loads(Path("chat.json").read_text())
    content["messages"][0]["images"] = images
    Path("chat.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=why):
        read("chat.json")


@pytest.mark.usefixtures("folder")
def test_a_damaged_image_is_an_error_once_it_is_needed() -> None:
    """Not where conversations are listed, which decodes none."""
    write("chat.json", conversation(AttachedImage("a\x1b.png", png()[:40])))
    again = read("chat.json")
    again.reads_images = True
    with pytest.raises(UsageError, match=r"^a␛\.png: the image is cut off"):
        again.images()
    assert base64.b64encode(again.turns[0].images[0].data)
