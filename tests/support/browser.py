"""A real browser for the tests of the page: Chromium without a window, and its elements by role and name."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.support.paths import ROOT

SECONDS = 60.0  # for what takes one or two on an idle machine
AXE = ROOT / ".browser" / "node_modules" / "axe-core" / "axe.min.js"
# Of an answer that goes on until it is stopped.
ENDLESS = {"ignore_eos": True, "max_tokens": 1500, "pause": 50}
WIDTHS = (390, 1024, 1600)
# Without a window Chromium has no pointer at all: a mouse, which can hover.
_MOUSE = (
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4"
)
_ROLES = {
    "button": "button, summary",
    "textbox": "textarea, input[type=text], input[type=search], input[type=password]",
    "spinbutton": "[role=spinbutton]",
    "combobox": "select, [role=combobox]",
    "switch": "[role=switch]",
    "slider": "input[type=range]",
    "article": "article",
    "dialog": "dialog[open]",
    "log": "[role=log]",
    "region": "[role=region]",
}
# Fields that a test adds to the page's requests, such as a grammar, which the page itself does not offer.
# `pause` is none of them: the milliseconds that each event of an answer is held, so that it is still being
# written when the test has looked, however fast the machine is.
_ADDED = """
window.added = {};
const ask = window.fetch;
const slowed = (response, pause) => {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  const body = new ReadableStream({
    async pull(controller) {
      for (;;) {
        const end = held.indexOf("\\n\\n");
        if (end >= 0) {
          await new Promise((resolve) => setTimeout(resolve, pause));
          controller.enqueue(new TextEncoder().encode(held.slice(0, end + 2)));
          held = held.slice(end + 2);
          return;
        }
        const part = await reader.read(); // fails where the request is stopped
        if (part.done) return controller.close();
        held += decoder.decode(part.value, { stream: true });
      }
    },
    cancel(why) { return reader.cancel(why); },
  });
  return new Response(body, { status: response.status, headers: response.headers });
};
window.fetch = async (path, options) => {
  if (new URL(path, location).pathname !== "/v1/chat/completions") return ask(path, options);
  if (window.answers) return window.answers(options);
  const { pause, ...added } = window.added;
  const body = JSON.stringify({ ...JSON.parse(options.body), ...added });
  const response = await ask(path, { ...options, body });
  return pause && response.ok ? slowed(response, pause) : response;
};
"""
_STORED = """
const done = arguments[0];
const request = indexedDB.open("specllama");
request.onsuccess = () => {
  const db = request.result;
  if (!db.objectStoreNames.contains("heads")) { db.close(); done([]); return; }
  const all = db.transaction(["heads", "messages"]);
  const heads = all.objectStore("heads").getAll();
  const messages = all.objectStore("messages").getAll();
  all.oncomplete = () => {
    db.close();
    done(heads.result.map((head) => (
      { ...head, all: messages.result.filter((one) => one.conversation === head.id) }
    )));
  };
};
"""
Found = TypeVar("Found")


def needs_chromium() -> list[pytest.MarkDecorator]:
    """The marks of tests in a browser."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return [
        pytest.mark.long,
        pytest.mark.timeout(400),
        pytest.mark.skipif(
            bool(missing), reason=f"there is no {' and no '.join(missing)}: Debian has chromium-driver"
        ),
    ]


class Page:
    """The page in a browser. driver: Selenium's; url: of the server."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver, self.url = driver, url

    # Elements

    def all(self, role: str, name: str | None = None) -> list[WebElement]:
        """The shown elements of a role, in order. name: what they are called for screen readers, all of it or
        its beginning; None for any.
        """
        found = []
        for element in self.driver.find_elements(By.CSS_SELECTOR, _ROLES[role]):
            with suppress(StaleElementReferenceException):  # an answer that is being written replaces its own
                if self._shown(element) and (name is None or element.accessible_name.startswith(name)):
                    found.append(element)
        return found

    def _shown(self, element: WebElement) -> bool:
        """Whether it takes room, even where it is transparent until one points at it."""
        return bool(self.js("return arguments[0].checkVisibility() && arguments[0].offsetWidth > 0", element))

    def get(self, role: str, name: str | None = None) -> WebElement:
        """The last one of them, waited for."""
        return self.until(lambda: self.all(role, name), f"{role} {name!r}")[-1]

    def press(self, name: str) -> None:
        """Press a button."""

        def pressed() -> bool:
            self.get("button", name).click()
            return True

        self.until(pressed, f"that {name!r} can be pressed")

    def text_of(self, selector: str) -> str:
        """The text of an element by CSS selector, "" if it is not there or not shown."""
        try:
            return str(self.driver.find_element(By.CSS_SELECTOR, selector).text)
        except (NoSuchElementException, StaleElementReferenceException):
            return ""

    @property
    def notice(self) -> str:
        return self.text_of("#notice p")

    @property
    def used(self) -> int:
        """The tokens of the context that the gauge shows."""
        return int((self.text_of("#context-text").split() or ["0"])[0].replace(",", ""))

    @property
    def answers(self) -> list[str]:
        """The texts of the answers, without reasoning, figures and buttons."""
        return [
            str(x)
            for x in self.js(
                "return [...document.querySelectorAll('.answer .body')].map(b => b.innerText.trim())"
            )
        ]

    @property
    def questions(self) -> list[str]:
        return [
            str(x)
            for x in self.js("return [...document.querySelectorAll('.question .body')].map(b => b.innerText)")
        ]

    @property
    def stored(self) -> list[dict[str, Any]]:
        """The conversations in the browser's storage. messages: the shown ones, in order; all: by id."""
        found: list[dict[str, Any]] = self.driver.execute_async_script(_STORED)
        for one in found:
            one["all"] = {message["id"]: message for message in one["all"]}
            one["messages"], id_ = [], one["leaf"]
            while id_ is not None:
                one["messages"].insert(0, one["all"][id_])
                id_ = one["all"][id_]["parent"]
        return found

    def forget(self) -> None:
        """Remove all that the browser has stored of the page, which is not open."""
        self.driver.execute_async_script(
            "const done = arguments[0]; localStorage.clear(); sessionStorage.clear();"
            "const request = indexedDB.deleteDatabase('specllama');"
            "request.onsuccess = request.onerror = request.onblocked = () => done();"
        )

    # Waiting

    def until(self, what: Callable[[], Found], text: str = "", seconds: float = SECONDS) -> Found:
        """Wait until `what()` is true; returns it."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if found := what():
                    return found
            except StaleElementReferenceException:
                pass
            if time.monotonic() > deadline:
                shown = self.text_of("body")[-1500:]
                raise AssertionError(f"not within {seconds:.0f} s: {text}\n{shown}\n{self.complaints}")
            time.sleep(0.05)

    def until_done(self) -> None:
        """Wait until no answer is being written."""
        time.sleep(0.1)
        self.until(lambda: self.all("button", "Send"), "the end of the answer")

    # Doing

    def open(self, path: str = "/") -> None:
        """Load the page, and wait until the model is known."""
        self.driver.get(self.url + path)

    def ready(self) -> Page:
        """Load the page and wait until it knows the model."""
        self.open()
        self.until(lambda: "of" in self.text_of("#context-text"), "the context of the model")
        return self

    def add(self, **fields: Any) -> None:
        """Send these fields with the following requests."""
        self.js("window.added = arguments[0]", fields)

    def note_requests(self) -> None:
        """Have window.sent get the bodies of the requests for answers."""
        self.js(
            "window.sent = []; const f = window.fetch; window.fetch = (path, options) => {"
            " if (String(path).endsWith('/chat/completions')) window.sent.push(JSON.parse(options.body));"
            " return f(path, options); }"
        )

    @property
    def model(self) -> str:
        """The name of the chosen model."""
        return self.text_of("#model-name")

    def choose_model(self, name: str) -> None:
        """Take a model in the menu of models, by its whole name or a part of it."""
        self.press("Model")
        field = self.get("combobox", "Search the models")
        field.send_keys(name, Keys.ENTER)

    def write(self, text: str, **fields: Any) -> None:
        """Send a question, and wait for nothing."""
        self.add(**fields)
        field = self.get("textbox", "Message")
        if "\n" in text:  # typed, it would send what is before
            self.js("arguments[0].value = arguments[1]", field, text)
        else:
            field.send_keys(text)
        field.send_keys(Keys.ENTER)

    def ask(self, text: str, **fields: Any) -> str:
        """Send a question; returns the answer's text."""
        n = len(self.answers)
        self.write(text, **fields)
        self.until(lambda: len(self.answers) > n or self.notice, "an answer")
        self.until_done()
        return self.answers[-1] if len(self.answers) > n else ""

    def new_tab(self) -> str:
        """Open a tab with the page in it. Returns the handle of the one before."""
        before = str(self.driver.current_window_handle)
        self.driver.switch_to.new_window("tab")
        self.set_up()
        self.resize(1600)
        self.ready()
        return before

    def set_up(self) -> None:
        """What a new tab needs before its first page."""
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _ADDED})
        self.driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def emulate(self, **features: str) -> None:
        """Set media features, such as prefers_color_scheme="dark"."""
        listed = [{"name": n.replace("_", "-"), "value": v} for n, v in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": listed})

    def resize(self, width: int, height: int = 900) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    @contextmanager
    def phone(self) -> Iterator[None]:
        """A tab with the page as on a phone, with fingers and no mouse."""
        before = self.new_tab()
        self.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
        self.resize(390, 844)
        self.ready()
        try:
            yield
        finally:
            self.driver.close()
            self.driver.switch_to.window(before)

    def work(self) -> float:
        """Milliseconds of processor time of the page's thread so far."""
        metrics = self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return 1000 * float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))

    @property
    def complaints(self) -> list[str]:
        """What the browser has reported since the last call: errors, and what the policy has refused."""
        return [
            str(entry["message"]) for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"
        ]

    def violations(self) -> list[str]:
        """What axe-core finds wrong, of serious and critical impact."""
        self.js(AXE.read_text("utf-8"))
        found: Mapping[str, Any] = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(done)"
        )
        return [
            f"{v['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for v in found["violations"]
            if v["impact"] in ("serious", "critical")
            for node in v["nodes"]
        ]


def written(text: str) -> dict[str, str]:
    """A request whose answer is this text."""
    return {"grammar": f"root ::= {json.dumps(text)}"}


@contextmanager
def browser(url: str, downloads: Path | None = None) -> Iterator[Page]:
    """A page in a new browser with an empty profile. downloads: where it saves files."""
    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    # Without a sandbox, which root and most containers cannot have; the pages are our own.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", _MOUSE):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver") or ""))
    try:
        driver.set_script_timeout(SECONDS)
        if downloads is not None:
            driver.execute_cdp_cmd(
                "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)}
            )
        page = Page(driver, url)
        page.set_up()
        page.resize(1600)
        yield page
    finally:
        driver.quit()
