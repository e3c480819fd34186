"""Prompts in bodies: ids, and how many prompts and choices a request may have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specllama.server.dialects.shared.fields import WHOLE_ITEMS, AtMost
from specllama.server.http.body import MAX_VALUES

MAX_PROMPTS, MAX_CHOICES = 64, 64
Ids = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], AtMost(MAX_VALUES, 1), WHOLE_ITEMS]
