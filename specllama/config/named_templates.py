"""llama.cpp's names for chat templates, which its users give in place of a template."""

from __future__ import annotations

import re

from specllama.errors import UsageError, option

CHATML = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + \
'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
_NAME = re.compile(r"[a-z][a-z0-9._-]{0,31}")


def named_template(given: str) -> str:
    """The template that is meant: the given one, or the one of this name. Raises UsageError for other names.

    No template is a single word: it would show no messages.
    """
    if given == "chatml":
        return CHATML
    if _NAME.fullmatch(given):
        raise UsageError(
            f"{option('chat_template')}: {given!r} is no template; of llama.cpp's names only chatml is known",
            f"give the template itself, in a file with {option('chat_template_file')}, or none at all",
        )
    return given
