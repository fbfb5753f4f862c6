//! A simulation as an SVG file, to be looked at in light and dark.

use std::fmt::Write;

use crate::simulate::frame::{BOTTOM, Frame, HEIGHT, LEFT, RIGHT, TOP, WIDTH};
use crate::simulate::report::{Report, Size};
use crate::simulate::table::percent;
use crate::terminal::{bytes, cut};

/// Told apart by those who see no red, too. The look is that of the pictures of `demo/chart.py`.
const STYLE: &str = "
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .title { font-size: 15px; font-weight: 600; }
  .grid { stroke: #d0d7de; stroke-width: 1; }
  .all { stroke: #8a8f98; stroke-width: 1.5; stroke-dasharray: 2 3; }
  .mark { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 5 4; }
  .back { fill: #ffffff; }
  .halo { stroke: #ffffff; stroke-width: 4; stroke-linejoin: round; paint-order: stroke; }
  polyline { fill: none; stroke-linejoin: round; }
  .found { stroke: #0b7285; stroke-width: 3; }
  .best { stroke: #e8590c; stroke-width: 1.5; }
  circle { fill: #0b7285; }
  .least { stroke: #ffffff; stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .grid { stroke: #30363d; } .back { fill: #0d1117; } .halo, .least { stroke: #0d1117; }
    .found { stroke: #3bc9db; } .best { stroke: #ff922b; } .mark { stroke: #ff7b72; } circle { fill: #3bc9db; }
  }
";

/// Letters of the name of a trace that fit.
const NAME_MAX: usize = 48;

/// One curve: its class, its name, where the name begins, and the blocks that it shows.
type Curve = (&'static str, &'static str, f64, fn(&Size) -> u64);

/// What is bought stands before what nobody reaches.
const CURVES: [Curve; 2] = [
    ("best", "the best order of eviction, knowing what comes (Belady)", LEFT + 120.0, best),
    ("found", "this pool", LEFT, found),
];

fn found(size: &Size) -> u64 {
    size.point.found
}

fn best(size: &Size) -> u64 {
    size.point.best
}

/// The picture.
pub fn svg(report: &Report) -> String {
    let frame = Frame::of(report);
    let title = escaped(&format!("{}: blocks found, by memory of the pool", cut(&report.name, NAME_MAX)));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"{title}\">\n  <style>{STYLE}</style>\n  \
         <rect class=\"back\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n"
    );
    text(&mut out, "title", (LEFT, 24.0), "start", &title);
    axes(&mut out, report, &frame);
    marks(&mut out, report, &frame);
    let place =
        |size: &Size, blocks: fn(&Size) -> u64| (frame.across(size.bytes as f64), frame.up(report.share(blocks(size))));
    for (class, name, begin, blocks) in CURVES {
        line(&mut out, class, (begin, 48.0), (begin + 24.0, 48.0));
        text(&mut out, "", (begin + 32.0, 52.0), "start", name);
        let points: Vec<String> =
            report.sizes().map(|size| place(size, blocks)).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(out, "  <polyline class=\"{class}\" points=\"{}\"/>", points.join(" "));
    }
    for size in &report.sizes {
        let (x, y) = place(size, found);
        let _ = writeln!(out, "  <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>");
    }
    if let Some(least) = &report.least {
        let (x, y) = place(least, found);
        let _ = writeln!(out, "  <circle class=\"least\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6.5\"/>");
    }
    out + "</svg>\n"
}

fn axes(out: &mut String, report: &Report, frame: &Frame) {
    for share in frame.shares() {
        let y = frame.up(share);
        line(out, "grid", (LEFT, y), (RIGHT, y));
        text(out, "", (LEFT - 8.0, y + 4.0), "end", &format!("{}", (share * 1e4).round() / 100.0));
    }
    for size in frame.marks() {
        let x = frame.across(size);
        line(out, "grid", (x, BOTTOM), (x, BOTTOM + 5.0));
        text(out, "", (x, BOTTOM + 20.0), "middle", &amount(size));
    }
    let name = format!("memory of the pool, with blocks of {}", amount(report.rules.block_bytes as f64));
    text(out, "", (f64::midpoint(LEFT, RIGHT), HEIGHT - 10.0), "middle", &name);
    let y = f64::midpoint(TOP, BOTTOM);
    let _ = writeln!(
        out,
        "  <text transform=\"translate(16 {y}) rotate(-90)\" text-anchor=\"middle\">% of the blocks asked for</text>"
    );
}

/// What memory for all blocks finds, and the least memory that is nearly as good.
fn marks(out: &mut String, report: &Report, frame: &Frame) {
    let possible = report.share(report.possible);
    let y = frame.up(possible);
    line(out, "all", (LEFT, y), (RIGHT, y));
    let name = format!("memory for all blocks: {}", percent(possible));
    text(out, "halo", (LEFT + 6.0, y - 6.0), "start", &name);
    let Some(least) = &report.least else { return };
    let x = frame.across(least.bytes as f64);
    line(out, "mark", (x, TOP), (x, BOTTOM));
    let share = least.point.found as f64 / report.possible.max(1) as f64;
    let name = format!("{}: {} of what is possible", bytes(least.bytes as f64), percent(share));
    // On the side that has the room.
    let (x, anchor) = if x > WIDTH / 2.0 { (x - 8.0, "end") } else { (x + 8.0, "start") };
    text(out, "halo", (x, BOTTOM - 12.0), anchor, &name);
}

/// `64 GB` for `64.0 GB`.
fn amount(size: f64) -> String {
    bytes(size).replace(".0 ", " ")
}

fn line(out: &mut String, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(out, "  <line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
}

/// A text that is escaped already.
fn text(out: &mut String, class: &str, (x, y): (f64, f64), anchor: &str, text: &str) {
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    let _ = writeln!(out, "  <text{class} x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

fn escaped(text: &str) -> String {
    let plain: String = text.chars().map(|one| if one.is_control() { ' ' } else { one }).collect();
    plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::report::report_for_tests;

    fn reports() -> Vec<Report> {
        vec![
            report_for_tests(&[6, 60, 600], Some(550)),
            report_for_tests(&[6], None),
            report_for_tests(&[1], Some(1)),
            report_for_tests(&[100, 101], Some(101)),
        ]
    }

    /// The values of an attribute, as numbers.
    fn numbers(svg: &str, attribute: &str) -> Vec<f64> {
        let begin = format!(" {attribute}=\"");
        let values = svg.split(&begin).skip(1).map(|rest| rest.split('"').next().unwrap());
        values.flat_map(|value| value.split([' ', ','])).map(|value| value.parse().expect(value)).collect()
    }

    #[test]
    fn every_element_ends_and_text_is_escaped() {
        for report in reports() {
            let svg = svg(&report);
            let mut open = Vec::new();
            for tag in svg.split('<').skip(1).map(|rest| rest.split('>').next().unwrap()) {
                match tag.strip_prefix('/') {
                    Some(name) => assert_eq!(open.pop(), Some(name), "{svg}"),
                    None if tag.ends_with('/') => {}
                    None => open.push(tag.split(' ').next().unwrap()),
                }
                assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
            }
            assert!(open.is_empty(), "{svg}");
            assert!(svg.contains("a &lt;trace&gt; &amp; &quot;more&quot; [31m"), "{svg}");
        }
    }

    #[test]
    fn everything_stands_inside_the_frame() {
        for report in reports() {
            let svg = svg(&report);
            for (attributes, end) in [(["x", "x1", "x2", "cx"], WIDTH), (["y", "y1", "y2", "cy"], HEIGHT)] {
                for value in attributes.iter().flat_map(|attribute| numbers(&svg, attribute)) {
                    assert!((0.0..=end).contains(&value), "{value} in {svg}");
                }
            }
            let points = numbers(&svg, "points");
            assert_eq!(points.len(), 4 * report.sizes().count(), "{svg}");
            assert!(points.iter().all(|value| (0.0..=WIDTH).contains(value)), "{svg}");
        }
    }
}
