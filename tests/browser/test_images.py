"""Images in the page: attached, shown, sent, kept; with a server that says that its model reads images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import AXE, Page, needs_chromium

pytestmark = needs_chromium()
# The server's answers as those of a model with a projector; what is sent is in window.sent.
_SEES = """
const real = window.fetch;
window.sent = [];
window.vision = true;
window.fetch = async (path, options) => {
  const { pathname } = new URL(path, location);
  if (pathname === "/v1/chat/completions") {
    window.sent.push(JSON.parse(options.body));
    const n = window.sent.length;
    const event = (one) => `data: ${JSON.stringify(one)}\\n\\n`;
    const body = event({ choices: [{ index: 0, delta: { content: `Answer ${n}` } }] })
      + event({ choices: [{ index: 0, delta: {}, finish_reason: "stop" }] }) + "data: [DONE]\\n\\n";
    return new Response(body, { headers: { "content-type": "text/event-stream" } });
  }
  if (pathname.endsWith("/input_tokens")) return new Response(JSON.stringify({ input_tokens: 300 }));
  const found = await real(path, options);
  if (pathname !== "/props" || !window.vision) return found;
  const props = await found.json();
  return new Response(JSON.stringify({ ...props, modalities: { vision: true, audio: false } }));
};
"""
# Give the page an image of a size, by what a user does. Resolves when it is made.
_GIVE = """
const [how, name, type, width, height, done] = arguments;
const canvas = new OffscreenCanvas(width, height);
const pen = canvas.getContext("2d");
pen.fillStyle = "teal"; pen.fillRect(0, 0, width, height);
pen.fillStyle = "gold"; pen.fillRect(width / 4, height / 4, width / 2, height / 2);
canvas.convertToBlob({ type }).then((blob) => {
  const data = new DataTransfer();
  data.items.add(new File([blob], name, { type }));
  const common = { bubbles: true, cancelable: true };
  if (how === "paste") document.getElementById("question").dispatchEvent(
    new ClipboardEvent("paste", { clipboardData: data, ...common }));
  else if (how === "drop") document.querySelector("main").dispatchEvent(
    new DragEvent("drop", { dataTransfer: data, ...common }));
  else {
    const field = document.getElementById("image-file");
    field.files = data.files;
    field.dispatchEvent(new Event("change"));
  }
  done();
});
"""


@pytest.fixture
def seeing(page: Page) -> Iterator[Page]:
    added = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _SEES})
    page.ready()
    page.until(lambda: page.all("button", "Image"), "the button for images")
    yield page
    page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def give(
    page: Page, name: str, how: str = "choose", kind: str = "image/png", size: tuple[int, int] = (64, 48)
) -> None:
    """Attach an image, and wait until it is shown."""
    page.driver.execute_async_script(_GIVE, how, name, kind, *size)
    page.until(lambda: name in thumbnails(page), f"the image {name}")


def thumbnails(page: Page, where: str = "#files") -> list[str]:
    """The names of the images that are shown there, once they are drawn."""
    return [
        str(name)
        for name in page.js(
            "return [...document.querySelectorAll(`${arguments[0]} .thumbnail`)]"
            ".filter((one) => one.querySelector('img').naturalWidth).map((one) => one.title)",
            where,
        )
    ]


def sent(page: Page) -> list[dict[str, Any]]:
    return list(page.js("return window.sent"))


def test_images_are_chosen_dropped_pasted_sent_and_kept(seeing: Page) -> None:
    page = seeing
    give(page, "one.png", "choose")
    give(page, "two.jpg", "drop", "image/jpeg")
    give(page, "three.webp", "paste", "image/webp")
    assert thumbnails(page) == ["one.png", "two.jpg", "three.webp"]
    page.press("Remove two.jpg")
    page.until(lambda: thumbnails(page) == ["one.png", "three.webp"])
    page.driver.refresh()  # not sent yet, and there again
    page.until(lambda: thumbnails(page) == ["one.png", "three.webp"], "the images of the draft")
    page.until(lambda: page.all("button", "Image"))
    assert page.ask("What are these?") == "Answer 1"
    assert thumbnails(page) == []
    assert thumbnails(page, ".question") == ["one.png", "three.webp"]
    (request,) = sent(page)
    (message,) = request["messages"]
    kinds = [part["type"] for part in message["content"]]
    assert kinds == ["image_url", "image_url", "text"]
    urls = [part["image_url"]["url"].partition(",")[0] for part in message["content"][:2]]
    assert urls == ["data:image/png;base64", "data:image/webp;base64"]
    assert message["content"][2]["text"] == "What are these?"
    page.driver.refresh()
    page.until(lambda: thumbnails(page, ".question") == ["one.png", "three.webp"], "the stored images")
    page.until(lambda: page.all("button", "Image"))
    page.ask("And now?")  # the next question has those of the first one before it
    assert sent(page)[0]["messages"][0] == message
    assert sent(page)[0]["messages"][2]["content"] == "And now?"


def test_edit_and_regenerate_keep_them(seeing: Page) -> None:
    page = seeing
    give(page, "one.png")
    give(page, "two.png", size=(48, 64))
    page.ask("Look")
    page.press("Regenerate the answer")
    page.until(lambda: len(sent(page)) == 2)
    page.until_done()
    assert sent(page)[1]["messages"] == sent(page)[0]["messages"]
    page.press("Edit the question")
    page.press("Remove one.png")
    page.js("document.querySelector('.edit .primary').click()")
    page.until(lambda: len(sent(page)) == 3)
    page.until_done()
    assert sent(page)[2]["messages"][0]["content"] == sent(page)[0]["messages"][0]["content"][1:]
    assert thumbnails(page, ".question") == ["two.png"]
    page.press("Previous version")
    page.until(lambda: thumbnails(page, ".question") == ["one.png", "two.png"])


def test_an_image_alone_is_a_question_and_opens_large(seeing: Page) -> None:
    page = seeing
    give(page, "holiday.png")
    page.press("Send")
    page.until(lambda: page.answers == ["Answer 1"])
    (part,) = sent(page)[0]["messages"][0]["content"]
    assert part["type"] == "image_url"
    assert page.driver.title == "holiday.png – specllama"
    page.press("Show holiday.png larger")
    page.until(lambda: page.js("return document.querySelector('#dialog img')?.naturalWidth") == 64)
    assert page.js("return document.querySelector('#dialog img').alt") == "holiday.png"
    page.press("Close")


def test_a_large_image_is_made_smaller_which_is_said(seeing: Page) -> None:
    page = seeing
    give(page, "large.png", size=(6000, 4000))
    assert page.notice == (
        "large.png has 6,000 × 4,000 pixels, and the most is 20 million: it is sent as 5,477 × 3,651."
    )
    size = page.js("const i = document.querySelector('#files img'); return [i.naturalWidth, i.naturalHeight]")
    assert size == [5477, 3651]


@pytest.mark.parametrize(
    ("name", "data", "kind", "said"),
    [
        ("a.png", "\x89PNG\r\n", "image/png", "a.png is not attached: this browser cannot read it"),
        ("a.heic", "ftypheic", "image/heic", "save it as PNG or JPEG"),
        ("a.mp4", "ftyp", "video/mp4", "no sound and no video"),
    ],
)
def test_what_is_no_image_is_refused(seeing: Page, name: str, data: str, kind: str, said: str) -> None:
    script = """
    const [name, data, type] = arguments;
    const all = new DataTransfer();
    all.items.add(new File([data], name, { type }));
    document.querySelector("main").dispatchEvent(
      new DragEvent("drop", { dataTransfer: all, bubbles: true, cancelable: true }));
    """
    seeing.js(script, name, data, kind)
    seeing.until(lambda: said in seeing.notice)
    assert thumbnails(seeing) == []


def test_more_images_than_a_request_holds(seeing: Page) -> None:
    page = seeing
    script = """
    const [done] = arguments;
    const page = document.querySelector("script[type=module]").src;
    import(new URL("images.js", page)).then(({ tooManyImages }) => {
      const files = (n) => Array(n).fill({ name: "one.png", image: new Blob(["x"]) });
      done([100, 101].map((n) => tooManyImages([{ files: files(n) }])));
    });
    """
    enough, more = page.driver.execute_async_script(script)
    assert not enough
    assert "the conversation has 101, and a request holds at most 100" in more
    large = """
    const [name, done] = arguments;
    const canvas = new OffscreenCanvas(8, 8);
    canvas.getContext("2d").fillRect(2, 2, 4, 4);
    canvas.convertToBlob({ type: "image/png" }).then((blob) => {
      const all = new DataTransfer();
      all.items.add(new File([blob, new Uint8Array(12_000_000)], name, { type: "image/png" }));
      document.querySelector("main").dispatchEvent(
        new DragEvent("drop", { dataTransfer: all, bubbles: true, cancelable: true }));
      done();
    });
    """
    page.driver.execute_async_script(large, "one.png")
    page.until(lambda: thumbnails(page) == ["one.png"])
    assert not page.notice
    page.ask("One")
    page.driver.execute_async_script(large, "two.png")
    page.until(lambda: "in a request, which holds at most" in page.notice)
    page.press("Remove two.png")
    page.until(lambda: not page.notice)


def test_a_model_that_reads_none(seeing: Page) -> None:
    """What is there stays, is marked as not sent, and the button goes."""
    page = seeing
    give(page, "one.png")
    page.ask("Look")
    assert not page.text_of(".unsent")
    blind = {"source": "window.vision = false;"}
    added = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", blind)
    try:
        page.driver.refresh()
        page.until(lambda: page.text_of(".unsent") == "The chosen model reads no images: they are not sent.")
        assert not page.all("button", "Image")
        assert thumbnails(page, ".question") == ["one.png"]
        page.ask("And in words?")
        assert sent(page)[0]["messages"][0]["content"] == "Look"
        page.driver.execute_async_script(_GIVE, "drop", "two.png", "image/png", 64, 48)
        page.until(lambda: "the chosen model reads no images" in page.notice)
    finally:
        page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_exported_and_imported(seeing: Page, tmp_path: Path) -> None:
    page = seeing
    page.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    give(page, "one.png")
    page.ask("Look")
    page.press("Export")
    file = tmp_path / "specllama-conversations.json"
    page.until(lambda: file.exists() and file.stat().st_size > 0)
    text = page.until(lambda: file.read_text("utf-8") if file.read_text("utf-8").endswith("}") else "")
    exported = json.loads(text)
    (image,) = exported["conversations"][0]["messages"][0]["files"]
    assert image["name"] == "one.png"
    assert image["image"].startswith("data:image/png;base64,")
    broken = json.loads(text)
    broken["conversations"][0].update(id="another", title="Broken")
    broken["conversations"][0]["messages"][0]["files"][0]["image"] = "data:text/html;base64,PHNjcmlwdD4="
    (tmp_path / "broken.json").write_text(json.dumps(broken), "utf-8")
    page.press("More for Look")
    page.press("Delete Look")
    page.until(lambda: page.questions == [])
    page.js("document.getElementById('import-file').hidden = false")
    for name, button in ((file.name, "Look"), ("broken.json", "Broken")):
        page.driver.find_element("id", "import-file").send_keys(str(tmp_path / name))
        page.press(button)
        page.until(lambda: page.questions == ["Look"])
        if button == "Look":
            page.until(lambda: thumbnails(page, ".question") == ["one.png"])
        else:
            page.until(lambda: page.text_of(".question .files") == "one.png · the image is not kept any more")


def test_at_390_pixels_and_for_screen_readers(seeing: Page) -> None:
    page = seeing
    page.resize(390, 844)
    give(page, "a-photo-of-a-camera-20261129-114014.jpg", kind="image/jpeg", size=(1200, 1600))
    give(page, "wide.png", size=(1600, 300))
    assert page.js("return document.documentElement.scrollWidth") == 390
    tops = page.js("return [...document.querySelectorAll('.row > button')].map((b) => b.offsetTop)")
    assert tops[0] == tops[1] == tops[2], "the button that sends is in the row of the others"
    page.ask("What is here?")
    assert page.js("return document.documentElement.scrollWidth") == 390
    give(page, "next.png")
    page.js("document.querySelector('.question .thumbnail').focus()")
    assert page.driver.switch_to.active_element.accessible_name.startswith("Show a-photo")
    if AXE.exists():
        assert page.violations() == []
