"""A line chart as an SVG file, to be looked at in light and dark."""

from html import escape

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 64, 48
# Told apart by those who see no red, too.
COLOURS = ("#8a8f98", "#0b7285", "#e8590c", "#5f3dc4")
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .title { font-size: 15px; font-weight: 600; }
  .grid { stroke: #d0d7de; stroke-width: 1; }
  .mark { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 5 4; }
  .line { fill: none; stroke-width: 2.5; stroke-linejoin: round; }
  .back { fill: #ffffff; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .grid { stroke: #30363d; } .back { fill: #0d1117; }
  }
"""


def lines(title, series, step, x, y, mark=None):
    """An SVG of these series, each with a point for every `step` of the x-axis; `mark` is a moment and its name."""
    count = max(len(values) for values in series.values())
    top = _round_up(max(max(values, default=0) for values in series.values()))
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def across(at):
        return LEFT + wide * at / max(1, count - 1)

    def up(value):
        return TOP + high * (1 - value / top)

    parts = [f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>']
    parts.append(f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>')
    for nth in range(5):
        value = top * nth / 4
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(value):.1f}" y2="{up(value):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{up(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for nth in range(0, count, max(1, count // 5)):
        parts.append(f'<text x="{across(nth):.1f}" y="{HEIGHT - 26}" text-anchor="middle">{nth * step:,}</text>')
    parts.append(f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x)}</text>')
    parts.append(
        f'<text transform="rotate(-90)" x="{-(TOP + high / 2)}" y="16" text-anchor="middle">{escape(y)}</text>'
    )
    if mark is not None and mark[0] is not None:
        at = across(mark[0] / step)
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{TOP + high}"/>')
        parts.append(f'<text x="{at + 6:.1f}" y="{TOP + 12}">{escape(mark[1])}</text>')
    for nth, (name, values) in enumerate(series.items()):
        colour = COLOURS[nth % len(COLOURS)]
        points = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in enumerate(values))
        parts.append(f'<polyline class="line" stroke="{colour}" points="{points}"/>')
        begin = LEFT + nth * 180
        parts.append(f'<line class="line" stroke="{colour}" x1="{begin}" x2="{begin + 24}" y1="46" y2="46"/>')
        parts.append(f'<text x="{begin + 32}" y="50">{escape(name)}</text>')
    body = "\n  ".join(parts)
    label = escape(title, quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">\n'
        f"  <style>{STYLE}</style>\n  {body}\n</svg>\n"
    )


def _round_up(value):
    """The next number that an axis ends well with."""
    for end in (1, 2, 4, 10, 20, 40, 60, 80, 100):
        if value <= end:
            return end
    return value
