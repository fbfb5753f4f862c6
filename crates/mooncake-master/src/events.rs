//! The last lines of the master's log, for its page: an operator who opens it after an incident finds them there.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::time::SystemTime;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

/// Lines that are kept of each kind: a crowd of clients that come back pushes no error out.
const LINES: usize = 50;

/// Longest line that is kept, bytes: the rest is left out.
const LINE_BYTES_MAX: usize = 1_000;

/// Lines of this target are figures, which the page has anyway.
pub const FIGURES: &str = "mooncake_master::figures";

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When it was written.
    pub at: SystemTime,
    /// How bad it is.
    pub level: Level,
    /// What it says, with its fields.
    pub text: String,
}

/// The last lines. What logs tells them.
#[derive(Debug, Default)]
pub struct Events {
    informations: Mutex<VecDeque<Line>>,
    /// Warnings and errors.
    warnings: Mutex<VecDeque<Line>>,
}

impl Events {
    /// Keeps a line of information or worse.
    pub fn tell(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        // Levels are ordered by how much they say.
        if *metadata.level() > Level::INFO || metadata.target() == FIGURES {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        self.keep(Line { at: SystemTime::now(), level: *metadata.level(), text: text.whole() });
    }

    fn keep(&self, line: Line) {
        let of = if line.level > Level::WARN { &self.informations } else { &self.warnings };
        let mut lines = of.lock();
        lines.truncate(LINES - 1);
        lines.push_front(line);
    }

    /// Newest first.
    pub fn lines(&self) -> Vec<Line> {
        let mut lines: Vec<Line> = self.informations.lock().iter().chain(&*self.warnings.lock()).cloned().collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.at));
        lines
    }
}

/// A line as it is put together: what it says, and its fields behind that.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn whole(self) -> String {
        let mut text = self.message + &self.fields;
        text.truncate(text.floor_char_boundary(LINE_BYTES_MAX));
        text
    }
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            name => _ = write!(self.fields, " {name}={value}"),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => _ = write!(self.message, "{value:?}"),
            name => _ = write!(self.fields, " {name}={value:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(nth: usize, level: Level) -> Line {
        let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(nth as u64);
        Line { at, level, text: nth.to_string() }
    }

    #[test]
    fn the_newest_lines_stand_first_and_an_error_outlasts_a_crowd_that_comes_back() {
        let events = Events::default();
        events.keep(line(0, Level::ERROR));
        (1..=2 * LINES).for_each(|nth| events.keep(line(nth, Level::INFO)));
        events.keep(line(2 * LINES + 1, Level::WARN));
        let lines: Vec<String> = events.lines().into_iter().map(|line| line.text).collect();
        assert_eq!((lines.len(), &*lines[0], &*lines[1]), (LINES + 2, "101", "100"));
        assert_eq!((&*lines[LINES], &*lines[LINES + 1]), ("51", "0"));
    }

    #[test]
    fn a_long_line_is_cut_between_two_letters() {
        let text = Text { message: "\u{4e2d}".repeat(1_000), fields: String::new() };
        assert_eq!(text.whole(), "\u{4e2d}".repeat(333));
    }
}
