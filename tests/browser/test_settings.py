"""The settings of sampling: every value that the server takes, and what each does."""

from __future__ import annotations

import json

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.browser import Page, needs_chromium
from tests.support.serving import Server

pytestmark = needs_chromium()
_SENT = """
window.sent = [];
const before = window.fetch;
window.fetch = (path, options) => {
  if (String(path).includes("/v1/chat/completions")) window.sent.push(options.body);
  return before(path, options);
};
"""
VALUES = {
    "Temperature": ("temperature", "0.33"), "Top p": ("top_p", "0.955"),
    "Repeat penalty": ("repeat_penalty", "1.03"),
    "Seed": ("seed", "-1"), "Min p": ("min_p", "0.0125"), "Top k": ("top_k", "0"),
    "Presence penalty": ("presence_penalty", "-1.5"), "Frequency penalty": ("frequency_penalty", "0.125"),
    "Penalties look back": ("repeat_last_n", "-1"), "Longest answer": ("max_tokens", "5"),
}  # fmt: skip


def test_values_that_the_server_takes_are_taken(page: Page) -> None:
    page.js(_SENT)
    page.press("Settings")
    for label, (_, value) in VALUES.items():
        page.get("spinbutton", label).send_keys(value)
    page.get("textbox", "Stop texts").send_keys("\n\nEND\nthe end\n\\n\\n\\n\n\\\\n")
    page.press("Save")
    page.until(lambda: not page.all("dialog"))
    page.ask("What does os.walk do?")
    body = json.loads(page.js("return window.sent")[0])
    for name, value in VALUES.values():
        assert body[name] == float(value), name
    assert body["stop"] == ["END", "the end", "\n\n\n", "\\n"]
    page.ready()
    page.press("Settings")
    for label, (_, value) in VALUES.items():
        assert page.get("spinbutton", label).get_attribute("value") == value
    page.press("Server's defaults")
    page.press("Save")
    page.js(_SENT)
    page.ask("What does os.walk do?", max_tokens=3)
    body = json.loads(page.js("return window.sent")[0])
    assert not {name for name, _ in VALUES.values()} & set(body) - {"max_tokens"}


@pytest.mark.parametrize(
    ("label", "value"), [("Top p", "1.5"), ("Top k", "2.5"), ("Repeat penalty", "0"), ("Seed", "-2")]
)
def test_values_that_it_refuses_are_said_so_at_once(page: Page, label: str, value: str) -> None:
    page.press("Settings")
    field = page.get("spinbutton", label)
    field.send_keys(value)
    page.press("Save")
    assert page.all("dialog")
    assert page.js("return arguments[0].validationMessage", field)
    assert page.js("return document.activeElement === arguments[0]", field)


def test_each_parameter_has_its_field_range_and_help(page: Page, chat_server: Server) -> None:
    listed = chat_server.get("/props").json["sampling_parameters"]
    assert {"temperature", "top_k", "repeat_last_n", "ignore_eos", "stop"} <= {one["name"] for one in listed}
    page.press("Settings")
    page.get("dialog")
    for one in listed:
        field = page.driver.find_element("id", f"set-{one['name']}")
        if one["type"] == "number":
            assert float(field.get_attribute("aria-valuemin") or "") == one["minimum"]
            assert float(field.get_attribute("aria-valuemax") or "") == one["maximum"]
        page.js("arguments[0].focus()", field)
        said = page.text_of(".settings .help")
        assert len(said) > 20, one["name"]
        described = page.js(
            "const text = (id) => document.getElementById(id).textContent;"
            "return arguments[0].getAttribute('aria-describedby').split(' ').map(text).join(' ')",
            field,
        )
        assert said in described
    page.js(
        "const over = new PointerEvent('pointerover', {bubbles: true});"
        "document.querySelector('[data-name=seed]').dispatchEvent(over)"
    )
    assert "same seed" in page.text_of(".settings .help")


def test_an_answer_of_no_tokens_cannot_be_set(page: Page) -> None:
    page.press("Settings")
    field = page.get("spinbutton", "Longest answer")
    field.send_keys("0")
    page.press("Save")
    assert page.js("return arguments[0].validationMessage", field).startswith(
        "The longest answer has 1 or more"
    )
    field.send_keys("\b4")
    page.press("Save")
    page.until(lambda: not page.all("dialog"))


def test_a_comma_is_a_point_or_refused(page: Page) -> None:
    """Never another number: 0,5 is 0.5, and what may be a thousand or a thousandth is asked about."""
    page.js(_SENT)
    page.press("Settings")
    temperature = page.get("spinbutton", "Temperature")
    for label, text in (
        ("Temperature", "1,000"),
        ("Temperature", "1.000,5"),
        ("Temperature", "half"),
        ("Top k", "1,5"),
        ("Longest answer", "1,000"),
        ("Longest time", "2,5,0"),
        ("Longest time", "-1"),
    ):
        field = page.get("spinbutton", label)
        field.send_keys(text, Keys.ENTER)
        assert page.js("return arguments[0].validationMessage", field), (label, text)
        assert page.js("return document.activeElement === arguments[0]", field)
        field.send_keys(Keys.CONTROL, "a", Keys.DELETE)
    temperature.send_keys("0,5")
    page.get("spinbutton", "Longest time").send_keys("12,5")
    field = page.get("spinbutton", "Top k")
    field.send_keys(Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_DOWN)
    assert field.get_attribute("value") == field.get_attribute("aria-valuenow") == "2"
    page.press("Save")
    page.until(lambda: not page.all("dialog"))
    page.ask("What does os.walk do?", max_tokens=3)
    body = json.loads(page.js("return window.sent")[0])
    assert (body["temperature"], body["top_k"], body["t_max_predict_ms"]) == (0.5, 2, 12500)
    page.press("Settings")
    assert page.get("spinbutton", "Temperature").get_attribute("value") == "0.5"


def test_a_preset_needs_a_name(page: Page) -> None:
    page.press("Settings")
    page.get("spinbutton", "Temperature").send_keys("0.33")
    page.get("button", "Save as preset").send_keys(Keys.ENTER)
    assert page.text_of(".presets .hint") == "Give the preset a name before you save it."
    name = page.get("textbox", "Name of the preset")
    assert page.driver.switch_to.active_element == name
    name.send_keys("cold")
    temperature = page.get("spinbutton", "Temperature")
    temperature.send_keys("x")
    page.press("Save as preset")
    assert page.driver.switch_to.active_element == temperature  # it is no number, so nothing is saved
    assert page.js("return document.getElementById('preset').length") == 1
    temperature.send_keys("\b")
    page.press("Save as preset")
    assert page.text_of(".presets .hint") == '"cold" is saved.'
    page.get("button", "Delete preset").send_keys(Keys.ENTER)
    assert page.text_of(".presets .hint") == '"cold" is deleted.'
    assert page.driver.switch_to.active_element == page.get("combobox", "Preset")
    page.js(
        "const presets = {}; for (let i = 0; i < 50; i++) presets[`p${i}`] = {};"
        "localStorage.setItem('specllama.settings', JSON.stringify({ presets }))"
    )
    name.send_keys("one more")
    page.press("Save as preset")
    assert page.text_of(".presets .hint").startswith("There are 50 presets: delete one")
    assert page.js("return Object.keys(JSON.parse(localStorage['specllama.settings']).presets).length") == 50


def test_escape_loses_nothing_that_was_typed(page: Page) -> None:
    page.press("Settings")
    page.get("textbox", "System prompt").send_keys(Keys.ESCAPE)
    page.until(lambda: not page.all("dialog"))
    assert page.notice == ""
    page.press("Settings")
    page.get("spinbutton", "Temperature").send_keys("0.25")
    page.get("textbox", "System prompt").send_keys("Be very brief.", Keys.ESCAPE)
    page.until(lambda: page.notice == "What you have changed in the settings is not saved.")
    page.press("Go on with it")
    assert page.get("textbox", "System prompt").get_attribute("value") == "Be very brief."
    assert page.get("spinbutton", "Temperature").get_attribute("value") == "0.25"
    page.press("Save")
    page.until(lambda: page.stored and page.stored[0]["system"] == "Be very brief.")
    assert page.notice == ""


def test_nothing_is_painted_over_the_title(page: Page) -> None:
    page.resize(1024, 500)
    page.press("Settings")
    assert page.get("button", "Delete preset").get_attribute("disabled")
    over = page.js(
        "const [gone] = [...document.querySelectorAll('.presets button')].slice(-1);"
        "const title = document.querySelector('#dialog header');"
        "const dialog = document.getElementById('dialog');"
        "dialog.scrollTop += gone.getBoundingClientRect().top - title.getBoundingClientRect().top;"
        "const { left, top, width, height } = gone.getBoundingClientRect();"
        "return document.elementFromPoint(left + width / 2, top + height / 2).closest('header') === title"
    )
    assert over
