"""Bar charts as SVG text, drawn without any library: small, and shown by every code host.

Owns their look. Pure; the benches write them beside the raw figures.
"""

from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["bars"]

_COLOURS = ("#2a6f97", "#e07a5f", "#81b29a", "#b5838d")
_WIDTH, _BAR, _GAP, _LABEL, _TOP = 720, 16, 14, 190, 44


def bars(title: str, unit: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Return a chart of horizontal bars: one group of bars per key, one bar per series."""
    series = list(dict.fromkeys(name for group in groups.values() for name in group))
    highest = max((value for group in groups.values() for value in group.values()), default=1.0)
    scale = (_WIDTH - _LABEL - 90) / (highest or 1.0)
    parts = [_text(8, 18, title, size=14), *_legend(series)]
    y = _TOP
    for name, group in groups.items():
        parts.append(_text(8, y + _BAR * len(group) / 2 + 4, name))
        for label, value in group.items():
            width = max(1.0, value * scale)
            colour = _COLOURS[series.index(label) % len(_COLOURS)]
            parts.append(
                f'<rect x="{_LABEL}" y="{y}" width="{width:.1f}" height="{_BAR - 2}" '
                f'fill="{colour}"/>'
            )
            parts.append(_text(_LABEL + width + 5, y + 11, f"{value:,.4g} {unit}"))
            y += _BAR
        y += _GAP
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" '
        f'font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _legend(series: Sequence[str]) -> list[str]:
    parts, x = [], _LABEL
    for index, name in enumerate(series):
        colour = _COLOURS[index % len(_COLOURS)]
        parts.append(f'<rect x="{x}" y="26" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(x + 14, 35, name))
        x += 30 + 7 * len(name)
    return parts


def _text(x: float, y: float, text: str, size: int = 11) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}">{escape(text)}</text>'
