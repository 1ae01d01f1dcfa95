"""A page of a report as Markdown: its sections as text and tables."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.core.report.blocks import Block, Bullets, Code, Details, Facts, Heading, Page, Picture, Table, Text

__all__ = ["escape", "markdown"]


def markdown(page: Page) -> str:
    """Return the whole file."""
    sign = f"{page.badge.sign} " if page.badge and page.badge.sign else ""
    parts = [f"# {sign}{escape(page.headline)}"]
    parts += [f"**{escape(banner.short or banner.text)}**" for banner in page.banners]
    parts.append(escape(page.summary or page.eyebrow))
    parts += [part for block in page.header for part in _parts(block)]
    for section in page.sections:
        if shown := [part for block in section.blocks for part in _parts(block)]:
            title = f"{section.title}: {section.mark.word}" if section.mark else section.title
            lead = [escape(section.lead)] if section.lead else []
            parts += [f"## {escape(title)}", *lead, *shown]
    parts += [escape(line) for line in page.footer]
    return "\n\n".join(parts) + "\n"


def _parts(block: Block) -> Iterator[str]:
    """Yield a block as Markdown; nothing of what only a page can show."""
    match block:
        case Heading(text):
            yield f"### {escape(text)}"
        case Text(text):
            yield escape(text)
        case Bullets(lines):
            yield "\n".join(f"- {escape(line)}" for line in lines)
        case Code(text, language):
            yield f"```{language}\n{text}\n```"
        case Facts(pairs):
            yield _table(Table(("fact", "value"), pairs))
        case Table():
            yield _table(block)
        case Picture(table=Table() as table):
            yield _table(table)
        case Details(
            Table() | Facts() as content, summary
        ):  # viewers fold it as far as they know HTML's element for it
            yield from (f"<details>\n<summary>{escape(summary)}</summary>", *_parts(content), "</details>")


def _table(table: Table) -> str:
    head = [escape(name) for name in table.head]
    lines = [head, ["---"] * len(head), *([escape(str(cell)) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: str) -> str:
    """Escape a user's text: no HTML, no emphasis or code, no additional column or line of a table."""
    for mark, instead in (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("`", "\\`"), ("*", "\\*")):
        text = text.replace(mark, instead)
    return " ".join(text.split())
