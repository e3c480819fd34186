"""Text that has arrived and not left yet, with the source of each run of characters."""

from __future__ import annotations

from specllama.text.detokenizer import Runs


class RunBuffer:
    """A queue of characters. text: what is in it."""

    def __init__(self) -> None:
        self.text = ""
        self._runs: list[tuple[int, str]] = []

    def push(self, text: str, runs: Runs) -> None:
        """Add text at the end. runs: (characters, source) of `text`."""
        self.text += text
        self._runs += runs

    def take(self, n: int) -> tuple[str, list[tuple[int, str]]]:
        """Remove the first n characters. Returns them and their runs."""
        taken, self.text = self.text[:n], self.text[n:]
        removed: list[tuple[int, str]] = []
        while n > 0 and self._runs:
            size, source = self._runs[0]
            part = min(size, n)
            removed.append((part, source))
            n -= part
            if part == size:
                del self._runs[0]
            else:
                self._runs[0] = (size - part, source)
        return taken, removed

    def open_end(self, texts: tuple[str, ...]) -> int:
        """Number of characters at the end that may be the beginning of one of these texts."""
        longest = min(max(map(len, texts), default=1) - 1, len(self.text))
        ends = (n for n in range(longest, 0, -1) if any(t.startswith(self.text[-n:]) for t in texts))
        return next(ends, 0)
