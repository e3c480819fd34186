"""A tiny model that thinks one character before each answer, and writes calls and JSON as grammars demand."""

from __future__ import annotations

from pathlib import Path

from tests.support import tinygguf

THOUGHT = "~"  # rare: what the prompt has already is penalised
_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_CALLS = (
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}"
)
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}" + _CALLS + "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n"
    "{% if enable_thinking is defined and enable_thinking is false %}\n</think>\n\n{% endif %}{% endif %}"
)


def thinker(folder: Path) -> list[str]:
    """Writes the model and its template. Returns the flags of a server of it."""
    path = tinygguf.llama(folder / "thinker.gguf", more=_TOKENS)
    (folder / "thinker.jinja").write_text(TEMPLATE, "utf-8")
    think = len(tinygguf.CONTROL) + ord(THOUGHT)
    close = tinygguf.N_VOCAB - len(_TOKENS) + _TOKENS.index("</think>")
    biases = [part for id_, bias in ((think, 60), (close, 40)) for part in ("--logit-bias", f"{id_}+{bias}")]
    return [
        "-m", str(path), "-md", "none", "--chat-template-file", str(folder / "thinker.jinja"),
        "--presence-penalty", "30", "--temp", "0", *biases,
    ]  # fmt: skip
