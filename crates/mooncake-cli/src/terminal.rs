//! Text for people: amounts, times, bars, colour, and what comes from others.

use std::fmt::Write;
use std::io::IsTerminal;

pub use mooncake_metrics::duration;

/// Whether what is printed is for eyes that see colour: a terminal, and nobody said no (`NO_COLOR`, `TERM=dumb`).
pub fn has_colour() -> bool {
    shows_colour(&std::io::stdout())
}

/// The same of any output.
pub fn shows_colour(output: &impl IsTerminal) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    output.is_terminal() && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// Letters in colours, or as they are.
#[derive(Debug, Clone, Copy)]
pub struct Paint(pub bool);

impl Paint {
    /// What is wrong.
    pub fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    /// What is nearly wrong.
    pub fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    /// What is well.
    pub fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    /// Headings.
    pub fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    /// What is beside the point.
    pub fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// `412 GB`, `1.5 KB`: three digits are enough to look at.
pub fn bytes(count: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KB", "MB", "GB", "TB", "PB"];
    let (mut value, mut unit) = (count, 0);
    // What would round to 1024 is one of the next unit.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match value {
        value if unit == 0 || value >= 99.5 => format!("{value:.0} {}", UNITS[unit]),
        value => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// `4,213,223`, and `0.4` where it is little.
pub fn number(value: f64) -> String {
    if value > 0.0 && value < 10.0 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `850 us`, `1.5 ms`; `-` of nothing.
pub fn microseconds(us: Option<f64>) -> String {
    match us {
        None => "-".to_owned(),
        Some(us) if us < 1_000.0 => format!("{us:.0} us"),
        Some(us) if us < 1_000_000.0 => format!("{} ms", number(us / 1e3)),
        Some(us) => format!("{} s", number(us / 1e6)),
    }
}

/// A bar of so many cells.
pub fn bar(share: f64, cells: usize) -> String {
    let full = ((share.clamp(0.0, 1.0) * cells as f64).round() as usize).min(cells);
    "█".repeat(full) + &"░".repeat(cells - full)
}

/// What a client says of itself, or a key: control characters would move the cursor, and others turn the line around.
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for one in text.chars() {
        match is_unseen(one) {
            true => _ = write!(out, "{}", one.escape_unicode()),
            false => out.push(one),
        }
    }
    out
}

/// Letters that move the cursor, turn the line around, or take no room.
pub fn is_unseen(letter: char) -> bool {
    let is_format = matches!(
        letter,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
    );
    letter.is_control() || is_format
}

/// No longer than so many letters: what is left out of the middle is a dot.
pub fn cut(text: &str, most: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= most {
        return text.to_owned();
    }
    let tail = most.saturating_sub(1) / 2;
    let head = most.saturating_sub(1) - tail;
    letters[..head].iter().chain(['…'].iter()).chain(&letters[letters.len() - tail..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_as_people_say_them() {
        assert_eq!(
            [0.0, 1023.0, 1536.0, 64.0 * 1073741824.0, 1023.6 * 1024.0].map(bytes),
            ["0 B", "1023 B", "1.5 KB", "64.0 GB", "1.0 MB"]
        );
        assert_eq!([0.0, 0.44, 999.0, 1000.0, 4213223.0].map(number), ["0", "0.4", "999", "1,000", "4,213,223"]);
        assert_eq!([None, Some(20.0), Some(1_500.0), Some(2e6)].map(microseconds), ["-", "20 us", "1.5 ms", "2 s"]);
        assert_eq!([0.0, 0.5, 1.0, 7.0].map(|share| bar(share, 4)), ["░░░░", "██░░", "████", "████"]);
    }

    #[test]
    fn what_others_say_moves_no_cursor_and_breaks_no_table() {
        assert_eq!(plain("a\x1b[2Jb\n\u{202e}c"), "a\\u{1b}[2Jb\\u{a}\\u{202e}c");
        assert_eq!(cut("abcdefghij", 5), "ab…ij");
        assert_eq!(cut("abc", 5), "abc");
        assert_eq!(Paint(true).red("x"), "\x1b[31mx\x1b[0m");
        assert_eq!(Paint(false).red("x"), "x");
    }
}
