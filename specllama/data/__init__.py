"""Files that several parts of the program use: the embedded pair and the head of the demo model, three GGUF
files that CARD.md describes, and the code of charts, for the page of the server and for reports.
"""

from __future__ import annotations

from pathlib import Path

EMBEDDED_TARGET = Path(__file__).parent / "pydoc-target.gguf"
EMBEDDED_DRAFT = Path(__file__).parent / "pydoc-draft.gguf"
DEMO_HEAD = Path(__file__).parent / "smollm2-eagle3.gguf"
CHARTS_JS = Path(__file__).parent / "charts.js"
CHARTS_CSS = Path(__file__).parent / "charts.css"
