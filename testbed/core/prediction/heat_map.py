"""A heat map of predictions over two axes as SVG: darker is better, each cell has its number. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Final

__all__ = ["HeatMap", "html_page", "svg"]

CELL_W: Final = 92
CELL_H: Final = 34
MARGIN_LEFT: Final = 110
MARGIN_TOP: Final = 74
MARGIN_BOTTOM: Final = 46
NOTE_H: Final = 15
CHARACTER_W: Final = 6


@dataclass(frozen=True)
class HeatMap:
    """What is drawn.

    Attributes:
        title, note: above and below the map; a note may have several lines.
        rows, columns: labels of the axes' values; ``row_axis``, ``column_axis`` their names.
        shares: 0 to 1 for each cell, which its colour shows; None for a cell that has no answer.
        labels: text of each cell.
    """

    title: str
    note: str
    row_axis: str
    column_axis: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    shares: tuple[tuple[float | None, ...], ...]
    labels: tuple[tuple[str, ...], ...]


def svg(heat_map: HeatMap) -> str:
    """Return the map as an SVG document that needs nothing else, readable in print and by colour-blind people."""
    notes = heat_map.note.split("\n")
    width = max(MARGIN_LEFT + CELL_W * len(heat_map.columns) + 20, 40 + CHARACTER_W * max(map(len, notes)))
    height = MARGIN_TOP + CELL_H * len(heat_map.rows) + MARGIN_BOTTOM + NOTE_H * (len(notes) - 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' font-family="sans-serif" font-size="13" role="img" aria-label="{escape(heat_map.title)}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(20, 24, heat_map.title, size=15, weight="bold"),
        _text(MARGIN_LEFT, 48, f"{heat_map.column_axis} \u2192", fill="#555"),
        _text(20, MARGIN_TOP - 8, f"{heat_map.row_axis} \u2193", fill="#555"),
    ]
    for column, name in enumerate(heat_map.columns):
        parts.append(_text(MARGIN_LEFT + CELL_W * (column + 0.5), MARGIN_TOP - 8, name, anchor="middle"))
    for row, name in enumerate(heat_map.rows):
        top = MARGIN_TOP + CELL_H * row
        parts.append(_text(MARGIN_LEFT - 10, top + CELL_H * 0.62, name, anchor="end"))
        for column, (share, label) in enumerate(zip(heat_map.shares[row], heat_map.labels[row], strict=True)):
            left = MARGIN_LEFT + CELL_W * column
            fill, ink = _colours(share)
            where = f"{heat_map.row_axis} {name}, {heat_map.column_axis} {heat_map.columns[column]}: {label}"
            parts.append(
                f'<rect x="{left}" y="{top}" width="{CELL_W - 2}" height="{CELL_H - 2}" fill="{fill}">'
                f"<title>{escape(where)}</title></rect>"
            )
            parts.append(_text(left + CELL_W / 2 - 1, top + CELL_H * 0.62, label, anchor="middle", fill=ink))
    for number, line in enumerate(reversed(notes)):
        parts.append(_text(20, height - 14 - NOTE_H * number, line, size=11, fill="#555"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def html_page(heat_map: HeatMap) -> str:
    """Return the map in a page of its own."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(heat_map.title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<style>body{margin:1rem;overflow-x:auto}</style></head>\n<body>\n" + svg(heat_map) + "</body></html>\n"
    )


def _colours(share: float | None) -> tuple[str, str]:
    """Return fill and ink: from nearly white to a dark blue, so that lightness alone tells them apart."""
    if share is None:
        return "#eeeeee", "#555555"
    share = min(1.0, max(0.0, share))
    light, dark = (239, 243, 255), (8, 48, 107)
    mixed = [round(low + (high - low) * share) for low, high in zip(light, dark, strict=True)]
    return "#" + "".join(f"{channel:02x}" for channel in mixed), "#ffffff" if share > 0.5 else "#111111"


def _text(
    x: float, y: float, text: str, *, size: int = 13, anchor: str = "start", weight: str = "normal", fill: str = "#111"
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{fill}">'
        f"{escape(text)}</text>"
    )
