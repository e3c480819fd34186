"""How a page of figures looks: one HTML file, nothing loaded from elsewhere, no scripts, light and dark.

Knows nothing of what it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

TITLE = "<title>specllama bench: "  # among the first 1024 bytes: by it a report is known
_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#60646c;--rule:#d9d9e0;--good:#30a46c;
--bad:#e5484d;--c0:#0068d6;--c1:#d6740b;--c2:#2b8a3e;--c3:#c2298a;--c4:#7048c8;--c5:#0b8a8a;--c6:#a8540f;--c7:#60646c}
@media(prefers-color-scheme:dark){:root{--bg:#111113;--fg:#edeef0;--dim:#b0b4ba;--rule:#363a3f;--c0:#70b8ff;
--c1:#ffa057;--c2:#71d083;--c3:#ff8dcc;--c4:#baa7ff;--c5:#53d6d6;--c6:#e0a070;--c7:#b0b4ba}}
body{background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;
padding:0 1rem}h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.5rem}
.dim,.legend{color:var(--dim);font-size:.9rem}.verdict{font-size:1.1rem;border-left:4px solid var(--c0);
padding-left:1rem}.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;
font-size:.9rem}th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--rule);
white-space:nowrap}th:first-child,td:first-child{text-align:left}td.best{font-weight:700}
svg{width:100%;max-width:44rem;height:auto;font:12px system-ui,sans-serif}svg text{fill:var(--dim)}
.grid{stroke:var(--rule)}.mark{stroke:var(--fg);stroke-dasharray:4 3}.line{fill:none;stroke-width:2}
.thick{stroke-width:3}.legend span{margin-right:1.2rem;white-space:nowrap}.key{display:inline-block;
width:.8rem;height:.8rem;margin-right:.4rem;background:var(--c)}.s0{--c:var(--c0)}.s1{--c:var(--c1)}.s2{--c:var(--c2)}
.s3{--c:var(--c3)}.s4{--c:var(--c4)}.s5{--c:var(--c5)}.s6{--c:var(--c6)}.s7{--c:var(--c7)}
.line,.thick{stroke:var(--c)}.dot,.fill{fill:var(--c)}
"""


def page(name: str, sections: Iterable[str]) -> str:
    """The whole. name: of what was measured, any text; sections: HTML, one after the other."""
    return (
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"{TITLE}{escape(name)}</title><style>{_STYLE}</style></head><body>\n"
            + "\n".join(sections)
            + "\n</body></html>\n"
        )
        .encode("utf-8", "replace")
        .decode()
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls where it is too wide. rows: of cells, HTML."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def entry(text: str) -> str:
    """A cell of a table."""
    return f"<td>{escape(text)}</td>"
