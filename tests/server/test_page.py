"""The page's routes on a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.server.page import POLICY, page_files
from tests.support.serving import Server

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_browsers_get_the_page_and_other_clients_a_line(server: Server) -> None:
    page, line = server.get("/", headers=BROWSER), server.get("/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<!doctype html>" in page.body
    assert line.body == b"specllama is running"
    assert page.headers["vary"] == line.headers["vary"] == "Accept"


@pytest.mark.parametrize("name", page_files())
def test_files(server: Server, name: str) -> None:
    reply = server.get(f"/page/{name}")
    assert reply.status == 200
    assert reply.body == page_files()[name].read_bytes()
    assert reply.headers["content-security-policy"] == POLICY
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-cache"
    again = server.get(f"/page/{name}", headers={"if-none-match": f'"other", W/{reply.headers["etag"]}'})
    assert (again.status, again.body) == (304, b"")
    assert again.headers["etag"] == reply.headers["etag"]
    assert server.get(f"/page/{name}", headers={"if-none-match": '"other"'}).status == 200


def test_other_paths_are_not_files(server: Server) -> None:
    for path in ("/page/", "/page/../app.py", "/page/%2e%2e/app.py", "/page/vendor", "/page/nothing.js"):
        assert server.get(path).status == 404
    assert server.post("/page/app.js", {}).status == 405


def test_a_key_is_needed_for_all_but_the_page(tmp_path) -> None:
    with Server(tmp_path, env={"SPECLLAMA_API_KEY": "secret"}) as one:
        assert one.get("/", headers=BROWSER).status == 200
        assert {one.get(f"/page/{name}").status for name in page_files()} == {200}
        assert one.get("/health").status == 200
        assert {one.get(path).status for path in ("/props", "/slots", "/v1/models", "/metrics")} == {401}


def test_a_foreign_host_and_origin_are_refused(server: Server) -> None:
    assert server.get("/", headers={**BROWSER, "host": "evil.example"}).status == 421
    assert server.get("/page/app.js", headers={"origin": "http://evil.example"}).status == 403


def test_responses_have_what_the_page_reads(server: Server) -> None:
    """The figures of an answer, and what /props says of the machine."""
    events = server.chat(
        stream=True, max_tokens=24, seed=1, ignore_eos=True, temperature=0,
        stream_options={"include_usage": True}, speculation={"trace": True},
    ).events  # fmt: skip
    rounds = [e["speculation"]["round"] for e in events if "round" in e.get("speculation", {})]
    assert rounds[-1]["n_predict"] == 24
    assert all({"drafted", "accepted", "ms", "n_predict"} <= set(one) for one in rounds)
    assert [one.get("rounds", 1) for one in rounds] == [0, *[1] * (len(rounds) - 1)]
    texts = [e for e in events if e["choices"] and e["choices"][0]["delta"].get("content")]
    for event in texts:
        shown = sum(n for n, _ in event["speculation"]["tokens"])
        assert shown == len(event["choices"][0]["delta"]["content"])
    figures = events[-1]["speculation"]
    assert figures["rounds"] == sum(count for count, _ in figures["decodes"].values())
    assert set(figures["seconds"]) == {"verify", "draft", "sampling", "other"}
    assert {"near_ties", "redecided", "reason"} <= set(figures)
    props = server.get("/props").json
    assert props["speculation"]["vocabulary"] == "identical"
    assert props["speculation"]["draft"]["n_params"] < props["target"]["n_params"]
    assert props["machine"]["n_threads"] == 1
    assert props["machine"]["host_bytes"] > 1_000_000


def test_an_answer_says_why_nothing_was_drafted(server: Server) -> None:
    speculation = server.chat(max_tokens=4, speculation={"enabled": False}).json["speculation"]
    assert speculation["n_drafted"] == 0
    assert speculation["reason"]


def test_measured_times_are_in_props(tmp_path) -> None:
    with Server(tmp_path, "-np", "1") as one:
        assert one.complete(max_tokens=40, ignore_eos=True).status == 200
        times = one.get("/props").json["speculation"]["decode_seconds"]
        assert times[0][0] == 1
        assert all(seconds > 0 for _, seconds in times)


def browser(folder: Path, code: int) -> dict[str, str | None]:
    """The environment in which the browser is a script that notes the address and ends with this code."""
    script = folder / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" >> "{folder}/opened"\nexit {code}\n')
    script.chmod(0o755)
    return {"BROWSER": f"{script} %s", "DISPLAY": None, "WAYLAND_DISPLAY": None}


def test_the_open_flag_opens_the_page(tmp_path: Path) -> None:
    with Server(tmp_path, "--open", env=browser(tmp_path, 0)) as one:
        assert one.wait_for("the page for a browser is") == f"the page for a browser is {one.url}/"
        opened = tmp_path / "opened"
        one.until(lambda: opened.exists() and opened.read_text().endswith("\n"))
        assert opened.read_text() == f"{one.url}/\n"


def test_a_missing_browser_is_logged(tmp_path: Path) -> None:
    with Server(tmp_path, "--open", env=browser(tmp_path, 1)) as one:
        assert one.wait_for("no browser").endswith(f"the page is at {one.url}/")


def test_no_browser_opens_by_default(tmp_path: Path) -> None:
    with Server(tmp_path, env=browser(tmp_path, 0)) as one:
        one.wait_for("the page for a browser is")
        assert one.complete(max_tokens=1).status == 200
    assert not (tmp_path / "opened").exists()
