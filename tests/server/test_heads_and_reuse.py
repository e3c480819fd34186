"""A model's head drafts after states that were restored, and the texts are those of plain decoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specllama.core.prefix.stored import GAP
from tests.support import tinymtp
from tests.support.conversations import Answer, Say
from tests.support.serving import Server
from tests.support.turns import Read, ask

BUILDERS: dict[str, tuple[Callable[..., Path], tuple[float, ...]]] = {
    "qwen35": (tinymtp.qwen35, (0.1, 0.1, 0.1, 1)),  # recurrent states matter; the head is right now and then
    "mimo2": (tinymtp.mimo2, (0.1, 1)),
}
SYSTEM = Say("system", "You answer questions about a machine that sorts letters by their stamps. " * 8)
KEYS = {name: {"Authorization": f"Bearer {name}"} for name in ("drafts", "plain")}


@pytest.mark.parametrize("kind", BUILDERS)
def test_texts_are_equal_and_drafts_are_accepted(tmp_path: Path, kind: str) -> None:
    """A turn, the next one, an edit, another agent, the first one again; then all after a restart."""
    build, adds = BUILDERS[kind]
    model = build(tmp_path / "model.gguf", adds=adds, copied=True, n_ctx_train=8192)
    first = [SYSTEM, Say("user", "What does it do with the others?")]
    longer = [*first, Answer("It keeps them in a box."), Say("user", "And then? " * 10)]
    edited = [*longer[:-1], Say("user", "Who looks at the box?")]
    other = [SYSTEM, Say("user", "I am another agent.")]
    steps = [first, longer, edited, other, longer, first]

    def served() -> Server:
        flags = ("-m", str(model), "-c", "4096", "-np", "2", "--draft-max", "3", "--no-memory")
        return Server(tmp_path, *flags, "--api-key", "drafts,plain", module="tests.support.keeps_prompts")

    def accepted(answer: Read) -> bool:
        """Whether drafts were, and the head made some."""
        by_head = answer.body["speculation"]["drafted_by"].get("head", 0)
        return answer.body["timings"]["draft_n_accepted"] > 0 and by_head > 0

    def said(server: Server, who: str) -> list[Any]:
        enabled = who == "drafts"
        asked: dict[str, Any] = {"headers": KEYS[who], "speculation": {"enabled": enabled}, "max_tokens": 40}
        replies = [ask(server, "chat", step, ignore_eos=True, **asked) for step in steps]
        for one in replies[1:]:
            assert one.n_cached > 300
        assert replies[-1].n_evaluated <= 2 * GAP
        assert [accepted(one) for one in replies] == [enabled] * len(steps)
        return [one.answer for one in replies]

    with served() as server:
        texts = said(server, "drafts")
        assert texts[1] == texts[4]
        assert texts[0] == texts[5]
        assert said(server, "plain") == texts
        assert server.stop() == 128 + 15
    with served() as server:
        again = ask(server, "chat", longer, headers=KEYS["drafts"], max_tokens=40, ignore_eos=True)
        assert again.answer == texts[1]
        assert again.n_cached > 300
        assert accepted(again)
