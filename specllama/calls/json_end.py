"""Finds the end of a JSON object or list in text that arrives in parts."""

from __future__ import annotations

import re

_NEXT = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


class JsonEnd:
    """Looks for the bracket that closes the first one. complete: whether it was found."""

    def __init__(self) -> None:
        self.complete = False
        self._depth = 0
        self._in_string = self._escaped = False

    def find(self, text: str) -> int:
        """Number of characters of the next part that belong to the value."""
        i = 0
        while i < len(text):
            if self._escaped:
                self._escaped, i = False, i + 1
                continue
            match = (_IN_STRING if self._in_string else _NEXT).search(text, i)
            if match is None:
                break
            i = match.end()
            mark = match.group()
            if mark == "\\":
                self._escaped = True
            elif mark == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if mark in "{[" else -1
                if self._depth <= 0:
                    self.complete = True
                    return i
        return len(text)
