//! Wraps what is too long of comments and prose: the end of a line goes to the next one of its paragraph, and so on.
//! Lines that fit stay as they are.

use super::lines::{LINE_MAX, is_too_long};

/// The text, wrapped.
pub fn wrapped(path: &str, text: &str) -> String {
    let is_prose = path.ends_with(".md");
    if !is_prose && !path.ends_with(".rs") {
        return text.to_owned();
    }
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut is_fenced = false;
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at].clone();
        let parts = Parts::of(&line, is_prose);
        let is_fence = parts.as_ref().is_some_and(|parts| parts.body.starts_with("```"));
        if parts.is_none() && !is_prose {
            is_fenced = false;
        }
        is_fenced ^= is_fence;
        if let Some(parts) =
            parts.filter(|parts| !is_fence && !is_fenced && parts.is_text() && is_too_long(&line, is_prose))
            && let Some((first, rest)) = split(&line, &parts)
        {
            let hanging = format!("{}{}", parts.mark, " ".repeat(parts.indent + parts.bullet));
            let next = lines.get(at + 1).and_then(|next| Parts::of(next, is_prose).map(|parts| (next.clone(), parts)));
            let goes_on = |(_, next): &(String, Parts)| {
                next.mark == parts.mark
                    && next.bullet == 0
                    && next.is_text()
                    && next.indent == parts.indent + parts.bullet
                    && !line.ends_with("  ")
            };
            match next.filter(goes_on) {
                Some((_, next)) => lines[at + 1] = format!("{hanging}{rest} {}", next.body),
                None => lines.insert(at + 1, format!("{hanging}{rest}")),
            }
            lines[at] = first;
        }
        at += 1;
    }
    let end = if text.ends_with('\n') { "\n" } else { "" };
    lines.join("\n") + end
}

/// A line of prose, or a comment that has a line of its own.
#[derive(Debug)]
struct Parts {
    /// What every line of the paragraph begins with: indentation and `///`, in prose nothing.
    mark: String,
    /// Blanks behind that.
    indent: usize,
    /// The length of a list's mark, with its blank.
    bullet: usize,
    /// The rest, list's mark included.
    body: String,
}

impl Parts {
    fn of(line: &str, is_prose: bool) -> Option<Self> {
        let mark = if is_prose {
            String::new()
        } else {
            let code = line.len() - line.trim_start().len();
            let slashes = ["//!", "///", "//"].into_iter().find(|slashes| line[code..].starts_with(slashes))?;
            let blank = if line[code + slashes.len()..].starts_with(' ') { " " } else { "" };
            format!("{}{slashes}{blank}", &line[..code])
        };
        let rest = &line[mark.len()..];
        let body = rest.trim_start_matches(' ');
        Some(Self { indent: rest.len() - body.len(), bullet: bullet(body), mark, body: body.to_owned() })
    }

    /// Whether it is running text: neither blank nor a heading, a table, a quotation, code or an element of its own.
    fn is_text(&self) -> bool {
        let is_definition = self.body.starts_with('[') && self.body.contains("]: ");
        let is_element = self.body.starts_with(['#', '|', '>', '<']) || self.body.starts_with("```") || is_definition;
        !self.body.is_empty() && self.indent < 8 && !is_element
    }
}

/// The length of the mark that begins an item of a list.
fn bullet(body: &str) -> usize {
    if let Some(mark) = ["- ", "* ", "+ "].into_iter().find(|mark| body.starts_with(mark)) {
        return mark.len();
    }
    let digits = body.len() - body.trim_start_matches(|char: char| char.is_ascii_digit()).len();
    if digits > 0 && body[digits..].starts_with(". ") { digits + 2 } else { 0 }
}

/// The line as far as it may go, and the rest of its body.
fn split(line: &str, parts: &Parts) -> Option<(String, String)> {
    let begin = parts.mark.len() + parts.indent + parts.bullet;
    let mut is_code = false;
    let (mut best, mut second_best) = (None, None);
    for (columns, (at, char)) in line.char_indices().enumerate() {
        if columns > LINE_MAX {
            break;
        }
        is_code ^= char == '`';
        let rest = line[at..].trim_start();
        let may_begin =
            !rest.is_empty() && bullet(rest) == 0 && !rest.starts_with(['#', '|', '>', '<', '+', '=', '-', '*']);
        if char == ' ' && at > begin && may_begin {
            if is_code { second_best = Some(at) } else { best = Some(at) }
        }
    }
    // Not where a line would be left with next to nothing.
    let at = best.filter(|&at| at > begin + LINE_MAX / 3).or(second_best).or(best)?;
    Some((line[..at].trim_end().to_owned(), line[at..].trim_start().to_owned()))
}
