"""The picture of the demo is an SVG that says what it was given, and nothing outside of itself."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "demo"))
import chart

SVG = "{http://www.w3.org/2000/svg}"


def test_every_series_is_a_line_inside_the_frame_and_text_is_escaped():
    series = {"memory & <disk>": [0, 50, 100], "memory alone": [5, 5, 5]}
    text = chart.lines("a <title>", series, step=50, x="requests", y="%", mark=(50, "killed"))
    svg = ET.fromstring(text)
    lines = svg.findall(f"{SVG}polyline")
    assert len(lines) == len(series)
    for line in lines:
        for point in line.get("points").split():
            across, up = map(float, point.split(","))
            assert 0 <= across <= chart.WIDTH
            assert 0 <= up <= chart.HEIGHT
    words = [element.text for element in svg.iter(f"{SVG}text")]
    assert {"a <title>", "memory & <disk>", "memory alone", "killed"} <= set(words)
    assert all(float(element.get("x", 0)) <= chart.WIDTH for element in svg.iter(f"{SVG}text"))
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_nothing_found_is_a_flat_line_and_no_division_by_nothing():
    assert "polyline" in chart.lines("t", {"a": [0]}, step=1, x="", y="")
