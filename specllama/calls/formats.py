"""The registry of call formats. A new one needs its file and an entry here."""

from __future__ import annotations

from collections.abc import Sequence

from specllama.calls.format import CallFormat
from specllama.calls.hermes import Hermes
from specllama.errors import UsageError, option

GENERIC: CallFormat = Hermes()
"""For templates of no known family, and those that show no tools."""
FORMATS: Sequence[CallFormat] = (GENERIC,)
"""In the order in which they are tried: special ones first."""


def named(name: str) -> CallFormat:
    """A format by its name. Raises UsageError."""
    for found in FORMATS:
        if found.name == name:
            return found
    known = ", ".join(found.name for found in FORMATS)
    raise UsageError(f"there is no call format {name!r}", f"{option('tool_format')} is one of {known}")


def choose(template: str) -> CallFormat:
    """The format of a model with this chat template."""
    return next((found for found in FORMATS if found.matches(template)), GENERIC)
