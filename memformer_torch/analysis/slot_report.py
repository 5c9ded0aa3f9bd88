"""One HTML file that holds everything it shows: no script, no outside resource, light and dark, wide and narrow."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from memformer_torch.analysis.token_text import Piece

# The policy forbids everything but what stands in the file, whatever a text may hold.
HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ --ground: #ffffff; --ink: #1c1f23; --soft: #5b6470; --line: #d5dae0; --card: #f5f7f9; --mark: 213, 94, 0; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ground: #15181c; --ink: #e6e9ed; --soft: #a3acb8; --line: #39414b; --card: #1e2329; --mark: 196, 84, 0; }}
}}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--ground); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }}
h1 {{ font-size: 1.5rem; line-height: 1.25; }}
h2 {{ font-size: 1.15rem; margin: 2.5rem 0 0.5rem; }}
.note, figcaption {{ color: var(--soft); font-size: 0.92rem; }}
figure {{ margin: 0; }}
.scroll {{ overflow-x: auto; }}
.scroll + .scroll {{ margin-top: 1.5rem; }}
img {{ display: block; width: 100%; min-width: 36rem; height: auto; background: #ffffff; border-radius: 6px; padding: 4px; }}
figcaption {{ margin-top: 0.5rem; }}
table {{ border-collapse: collapse; font-size: 0.92rem; }}
th, td {{ border-bottom: 1px solid var(--line); padding: 0.3rem 0.7rem; text-align: right; vertical-align: top; }}
th:first-child, td:first-child {{ text-align: left; }}
td.words {{ text-align: left; min-width: 14rem; }}
.text {{ background: var(--card); border-radius: 6px; padding: 0.7rem; margin: 0.5rem 0; white-space: pre-wrap;
  font-family: ui-monospace, monospace; font-size: 0.92rem; line-height: 1.7; }}
.text span {{ border-radius: 3px; background: rgba(var(--mark), var(--w)); }}
details {{ margin-top: 0.5rem; }}
summary {{ cursor: pointer; }}
</style>
</head>
<body>
<main>
"""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A heading with a picture, if there is one, and what is said about it."""

    title: str
    caption: str
    picture: Path | None = None
    alt: str = ""
    more: str = ""
    """HTML, made by the functions below."""


def write_report(path: Path, title: str, introduction: str, table: str, parts: Sequence[Part]) -> None:
    """Everything is escaped but `table` and `Part.more`, which are HTML."""
    body = [HEAD.format(title=escape(title)), f"<h1>{escape(title)}</h1>", f"<p>{escape(introduction)}</p>", table]
    for part in parts:
        body.append(f"<section>\n<h2>{escape(part.title)}</h2>\n<figure>")
        if part.picture is not None:
            data = base64.b64encode(part.picture.read_bytes()).decode("ascii")
            image = f'<img alt="{escape(part.alt)}" src="data:image/png;base64,{data}">'
            body.append(f'<div class="scroll">{image}</div>')
        body.append(f"<figcaption>{escape(part.caption)}</figcaption>\n</figure>\n{part.more}\n</section>")
    body.append("</main>\n</body>\n</html>\n")
    path.write_text("\n".join(body), encoding="utf-8", errors="replace")


def table_html(columns: Sequence[str], rows: Sequence[Sequence[str]], words: int | None = None) -> str:
    """A table that scrolls where it is too wide; the column number `words` holds text."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    lines = [
        "".join(f"<td{' class=words' if index == words else ''}>{escape(cell)}</td>" for index, cell in enumerate(row))
        for row in rows
    ]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def text_html(paragraphs: Sequence[tuple[str, Sequence[Piece]]]) -> str:
    """Texts under their headings, each piece on a ground as strong as its weight; the weight itself is its title."""
    heaviest = max((piece.weight for _, parts in paragraphs for piece in parts), default=0.0) or 1.0
    found = []
    for heading, parts in paragraphs:
        spans = "".join(_span(piece, 0.85 * piece.weight / heaviest) for piece in parts)
        found.append(f'<p class="note">{escape(heading)}</p>\n<div class="text">{spans}</div>')
    return "\n".join(found)


def details_html(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>\n{content}\n</details>"


def _span(piece: Piece, strength: float) -> str:
    """Blanks before a word stand outside; line breaks are shown and kept, other control characters shown by a dot."""
    word = piece.text.lstrip(" ") or piece.text
    before = piece.text[: len(piece.text) - len(word)]
    shown = "".join(c if c.isprintable() or c in "\n\t" else "·" for c in word)
    text = escape(shown).replace("\n", "↵\n")
    return f'{before}<span style="--w:{strength:.3f}" title="{piece.weight:.1%}">{text}</span>'
