"""The settings of sampling: every value that the server takes, and what each does."""

from __future__ import annotations

import json

import pytest

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
    page.get("textbox", "Stop texts").send_keys("\n\nEND\nthe end")
    page.press("Save")
    page.until(lambda: not page.all("dialog"))
    page.ask("What does os.walk do?")
    body = json.loads(page.js("return window.sent")[0])
    for name, value in VALUES.values():
        assert body[name] == float(value), name
    assert body["stop"] == ["END", "the end"]
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
            assert float(field.get_attribute("min") or "") == one["minimum"]
            assert float(field.get_attribute("max") or "") == one["maximum"]
            assert field.get_attribute("step") == "any"
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
