//! `mooncake top`: a pool as it changes, on a terminal.

use std::io::{self, IsTerminal};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use mooncake_settings::{SettingError, TOP};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Sparkline, Table};
use serde_json::Value;

use super::pages::{Pages, PagesError};
use super::status::{figure, percent, read, text};
use crate::flags;
use crate::signals;
use crate::terminal::{bar, bytes, duration, has_colour, microseconds, number};

/// Between two readings.
const EVERY: Duration = Duration::from_secs(2);

/// Between two looks at the keyboard.
const LOOK: Duration = Duration::from_millis(100);

/// Problems that are shown.
const PROBLEMS_MAX: usize = 3;

/// Why it does not begin, or ends.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// The command line.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The master.
    #[error(transparent)]
    Pages(#[from] PagesError),
    /// The terminal.
    #[error("the terminal: {0}")]
    Terminal(#[from] io::Error),
    /// There is none.
    #[error("the output is no terminal; mooncake status prints the same once")]
    NoTerminal,
    /// The thread that asks the master.
    #[error("the thread that asks the master has ended: please report this")]
    Ended,
}

/// What is looked at, and how.
#[derive(Debug, Default)]
struct View {
    is_clients: bool,
    /// Column that rows are sorted by.
    sorted_by: usize,
    filter: String,
    /// The filter is being typed.
    is_typing: bool,
    first: usize,
    is_held: bool,
    has_colour: bool,
}

/// Shows it until `q`.
pub fn run(args: impl IntoIterator<Item = String>) -> Result<(), TopError> {
    let Some(given) = flags::read(&TOP, args)? else { return Ok(()) };
    if !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    let pages = Pages::of(&given)?;
    let mut status = read(&pages)?;
    let readings = ask_for_ever(pages);
    let signals = signals::watch()?;
    let mut terminal = ratatui::try_init()?;
    let mut view = View { has_colour: has_colour(), ..View::default() };
    let (mut silent, mut heard) = (None, Instant::now());
    let ended = loop {
        // However it ends, the terminal is as it was.
        if signals.ended.load(Ordering::Acquire) {
            break Ok(());
        }
        match readings.try_recv() {
            Ok(Ok(reading)) => {
                (silent, heard) = (None, Instant::now());
                if !view.is_held {
                    status = reading;
                }
            }
            Ok(Err(error)) => {
                silent = Some(format!("no answer for {}: {error}", duration(heard.elapsed().as_secs_f64())))
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => break Err(TopError::Ended),
        }
        if let Err(error) = terminal.draw(|frame| draw(frame, &status, silent.as_deref(), &mut view)) {
            break Err(error.into());
        }
        match event::poll(LOOK).and_then(|is_one| if is_one { event::read().map(Some) } else { Ok(None) }) {
            Ok(Some(event)) if is_end(&event, &mut view) => break Ok(()),
            Ok(_) => {}
            Err(error) => break Err(error.into()),
        }
    };
    ratatui::try_restore()?;
    ended
}

/// Readings, each a while after the one before.
fn ask_for_ever(pages: Pages) -> Receiver<Result<Value, PagesError>> {
    let (sender, receiver) = sync_channel(1);
    thread::spawn(move || {
        loop {
            thread::sleep(EVERY);
            if sender.send(read(&pages)).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Whether a key ends it; else what the key changes is changed.
fn is_end(event: &Event, view: &mut View) -> bool {
    let Event::Key(key) = event else { return false };
    if key.kind == KeyEventKind::Release {
        return false;
    }
    let is_ctrl_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    if view.is_typing {
        match key.code {
            _ if is_ctrl_c => return true,
            KeyCode::Enter => view.is_typing = false,
            KeyCode::Esc => {
                view.is_typing = false;
                view.filter.clear();
            }
            KeyCode::Backspace => _ = view.filter.pop(),
            KeyCode::Char(letter) => view.filter.push(letter),
            _ => {}
        }
        view.first = 0;
        return false;
    }
    match key.code {
        _ if is_ctrl_c => return true,
        KeyCode::Char('q') | KeyCode::Esc => return true,
        KeyCode::Char('n') => (view.is_clients, view.first, view.sorted_by) = (false, 0, 0),
        KeyCode::Char('c') => (view.is_clients, view.first, view.sorted_by) = (true, 0, 0),
        KeyCode::Tab => (view.is_clients, view.first, view.sorted_by) = (!view.is_clients, 0, 0),
        KeyCode::Char('s') => view.sorted_by += 1,
        KeyCode::Char('/') => (view.is_typing, view.filter) = (true, String::new()),
        KeyCode::Char(' ') => view.is_held = !view.is_held,
        KeyCode::Down => view.first += 1,
        KeyCode::Up => view.first = view.first.saturating_sub(1),
        KeyCode::PageDown => view.first += 10,
        KeyCode::PageUp => view.first = view.first.saturating_sub(10),
        KeyCode::Home => view.first = 0,
        _ => {}
    }
    false
}

fn draw(frame: &mut Frame<'_>, status: &Value, silent: Option<&str>, view: &mut View) {
    let problems = problems(status, silent, view);
    let [head, wrong, cards, rows, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(problems.len() as u16),
        Constraint::Length(6),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let state = text(&status["state"]);
    let colour = if state == "serving" && silent.is_none() { Color::Green } else { Color::Red };
    frame.render_widget(
        Line::from(vec![
            Span::styled(text(&status["cluster_id"]), Modifier::BOLD),
            Span::styled(format!("  {state}"), view.paint(colour)),
            Span::raw(format!(
                "  version {}  up {}  {}{}",
                text(&status["version"]),
                duration(figure(&status["uptime_seconds"])),
                text(&status["rpc_address"]),
                if view.is_held { "  HELD" } else { "" },
            )),
        ]),
        head,
    );
    frame.render_widget(Paragraph::new(problems), wrong);
    draw_cards(frame, status, view, cards);
    match view.is_clients {
        true => draw_clients(frame, status, view, rows),
        false => draw_nodes(frame, status, view, rows),
    }
    let keys = match view.is_typing {
        true => format!("filter: {}_   Enter keeps it, Esc drops it", view.filter),
        false if view.filter.is_empty() => "q ends  n nodes  c clients  s sorts  / filters  space holds".to_owned(),
        false => format!("only with {:?}: / changes it", view.filter),
    };
    frame.render_widget(Line::styled(keys, Modifier::DIM), foot);
}

impl View {
    fn paint(&self, colour: Color) -> Style {
        if self.has_colour { Style::new().fg(colour) } else { Style::new() }
    }
}

fn problems(status: &Value, silent: Option<&str>, view: &View) -> Vec<Line<'static>> {
    let all = status["problems"].as_array().map_or(&[][..], |all| all);
    let told = all.iter().take(PROBLEMS_MAX).map(|problem| {
        let colour = if problem["severity"] == "error" { Color::Red } else { Color::Yellow };
        Line::styled(format!("! {}", text(&problem["message"])), view.paint(colour))
    });
    let silent = silent.map(|why| Line::styled(format!("! {why}"), view.paint(Color::Red)));
    let more = all.len().saturating_sub(PROBLEMS_MAX);
    let more =
        (more > 0).then(|| Line::styled(format!("! and {more} more: mooncake status"), view.paint(Color::Yellow)));
    silent.into_iter().chain(told).chain(more).collect()
}

/// A column of the history, as a sparkline wants it: the largest is 100.
fn scaled(column: &Value) -> Vec<u64> {
    let values: Vec<f64> = column.as_array().into_iter().flatten().map(figure).collect();
    let most = values.iter().copied().fold(0.0, f64::max);
    values.iter().map(|value| if most > 0.0 { (100.0 * value / most) as u64 } else { 0 }).collect()
}

fn draw_cards(frame: &mut Frame<'_>, status: &Value, view: &View, area: Rect) {
    let (memory, rates, latency, history) =
        (&status["memory"], &status["rates"], &status["latency_us"], &status["history"]);
    let (used, capacity) = (figure(&memory["used_bytes"]), figure(&memory["capacity_bytes"]));
    let rate = |name: &str| figure(&rates[name]);
    let us = |kind: &str, share: &str| microseconds(latency[kind][share].as_f64());
    let cards: [(&str, [String; 3], &Value); 4] = [
        (
            "memory",
            [
                format!("{} of {}", bytes(used), bytes(capacity)),
                format!("{} objects", number(figure(&memory["objects"]))),
                format!("pinned {}", bytes(figure(&memory["pinned_bytes"]))),
            ],
            &history["used_bytes"],
        ),
        (
            "hits",
            [
                format!("gets {}", percent(rate("get_hits"), rate("gets"))),
                format!("queries {}", percent(rate("exists_hits"), rate("exists"))),
                format!("from tiers {}", percent(rate("tier_hits"), rate("gets"))),
            ],
            &history["get_hit_ratio"],
        ),
        (
            "traffic",
            [
                format!("gets {}/s {}/s", number(rate("gets")), bytes(rate("got_bytes"))),
                format!("puts {}/s {}/s", number(rate("puts")), bytes(rate("put_bytes"))),
                format!("evicted {}/s", bytes(rate("evicted_bytes"))),
            ],
            &history["gets"],
        ),
        (
            "latency",
            [
                format!("get {} p99 {}", us("get", "p50"), us("get", "p99")),
                format!("put start {} p99 {}", us("put_start", "p50"), us("put_start", "p99")),
                format!("log p99 {}", us("log_append", "p99")),
            ],
            &history["get_p99_us"],
        ),
    ];
    let places: [Rect; 4] = Layout::horizontal([Constraint::Ratio(1, 4); 4]).areas(area);
    for ((title, lines, column), place) in cards.into_iter().zip(places) {
        let block = Block::default().borders(Borders::TOP).title(format!(" {title} "));
        let [figures, line] = Layout::vertical([Constraint::Length(3), Constraint::Min(1)]).areas(block.inner(place));
        frame.render_widget(block, place);
        frame.render_widget(Paragraph::new(lines.map(Line::from).to_vec()), figures);
        let values = scaled(column);
        // The newest at the right, as many as there is room for.
        let newest = &values[values.len().saturating_sub(usize::from(line.width))..];
        frame.render_widget(Sparkline::default().data(newest).max(100).style(view.paint(Color::Cyan)), line);
    }
}

/// A table's column: its head, its width, and what a client has in it, to be shown and to be sorted by.
type Column = (&'static str, u16, fn(&Value) -> String, fn(&Value) -> f64);

const NODES: [Column; 8] = [
    ("node", 24, |it| text(&it["name"]), |it| -f64::from(u8::from(it["state"] == "ok"))),
    ("state", 14, state, |it| figure(&it["away_seconds"])),
    ("used", 15, fill, |it| figure(&it["used_bytes"]) / figure(&it["lent_bytes"]).max(1.0)),
    ("of", 9, |it| bytes(figure(&it["lent_bytes"])), |it| figure(&it["lent_bytes"])),
    ("pinned", 9, |it| bytes(figure(&it["pinned_bytes"])), |it| figure(&it["pinned_bytes"])),
    ("tier", 9, |it| bytes(figure(&it["tier_used_bytes"])), |it| figure(&it["tier_used_bytes"])),
    ("paths", 8, paths, |it| it["paths"].as_array().map_or(0, Vec::len) as f64),
    ("host", 16, host, |_| 0.0),
];

const CLIENTS: [Column; 9] = [
    ("client", 24, |it| text(&it["name"]), |it| figure(&it["gets_per_second"]) + figure(&it["puts_per_second"])),
    ("state", 14, state, |it| figure(&it["away_seconds"])),
    ("gets/s", 9, |it| number(figure(&it["gets_per_second"])), |it| figure(&it["gets_per_second"])),
    ("puts/s", 9, |it| number(figure(&it["puts_per_second"])), |it| figure(&it["puts_per_second"])),
    ("read/s", 9, |it| bytes(figure(&it["got_bytes_per_second"])), |it| figure(&it["got_bytes_per_second"])),
    ("stored", 9, |it| bytes(figure(&it["stored_bytes"])), |it| figure(&it["stored_bytes"])),
    ("views", 9, |it| bytes(figure(&it["viewed_bytes"])), |it| figure(&it["viewed_bytes"])),
    ("program", 16, |it| format!("{} {}", text(&it["program"]), figure(&it["pid"])), |_| 0.0),
    ("user@host", 20, |it| format!("{}@{}", text(&it["user"]), host(it)), |_| 0.0),
];

fn state(client: &Value) -> String {
    match client["away_seconds"].as_f64() {
        Some(seconds) => format!("away {}", duration(seconds)),
        None => text(&client["state"]).replace('_', " "),
    }
}

fn fill(client: &Value) -> String {
    let share = figure(&client["used_bytes"]) / figure(&client["lent_bytes"]).max(1.0);
    format!("{} {:>3.0} %", bar(share, 8), 100.0 * share)
}

fn paths(client: &Value) -> String {
    let paths: Vec<String> = client["paths"].as_array().into_iter().flatten().map(text).collect();
    paths.join(",")
}

fn host(client: &Value) -> String {
    let pod = text(&client["pod"]);
    if pod.is_empty() { text(&client["host"]) } else { pod }
}

fn draw_nodes(frame: &mut Frame<'_>, status: &Value, view: &mut View, area: Rect) {
    draw_table(frame, status, view, area, &NODES, |it| figure(&it["lent_bytes"]) + figure(&it["tiers"]) > 0.0);
}

fn draw_clients(frame: &mut Frame<'_>, status: &Value, view: &mut View, area: Rect) {
    draw_table(frame, status, view, area, &CLIENTS, |_| true);
}

fn draw_table(
    frame: &mut Frame<'_>,
    status: &Value,
    view: &mut View,
    area: Rect,
    columns: &[Column],
    is_one: fn(&Value) -> bool,
) {
    let matches = |client: &&Value| {
        let told = |name: &&str| text(&client[*name]).contains(&view.filter);
        view.filter.is_empty() || ["name", "host", "pod", "user", "program"].iter().any(told)
    };
    let all = status["clients"].as_array().into_iter().flatten();
    let mut shown: Vec<&Value> = all.filter(|client| is_one(client)).filter(matches).collect();
    view.sorted_by %= columns.len();
    let sorted_by = columns[view.sorted_by].3;
    shown.sort_by(|a, b| sorted_by(b).total_cmp(&sorted_by(a)).then_with(|| text(&a["name"]).cmp(&text(&b["name"]))));
    view.first = view.first.min(shown.len().saturating_sub(1));
    let rows = shown.iter().skip(view.first).take(usize::from(area.height)).map(|client| {
        let colour = match client["state"].as_str() {
            Some("ok") | None => None,
            Some("closed" | "waits_for_heir") => Some(Color::Yellow),
            Some(_) => Some(Color::Red),
        };
        let row = Row::new(columns.iter().map(|(_, _, told, _)| told(client)));
        colour.map_or(row.clone(), |colour| row.style(view.paint(colour)))
    });
    let heads = columns.iter().enumerate().map(|(nth, (head, ..))| match nth == view.sorted_by {
        true => format!("{head} ▼"),
        false => (*head).to_owned(),
    });
    let count = format!(" {} of {} ", shown.len().saturating_sub(view.first), shown.len());
    let table = Table::new(rows.collect::<Vec<_>>(), columns.iter().map(|(_, width, ..)| Constraint::Length(*width)))
        .header(Row::new(heads.collect::<Vec<_>>()).style(Modifier::BOLD))
        .block(Block::default().borders(Borders::TOP).title(count));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyEvent;
    use serde_json::json;

    use super::*;

    fn status() -> Value {
        let client = |name: &str, state: &str, lent: u64, gets: f64| {
            json!({"name": name, "state": state, "lent_bytes": lent, "used_bytes": lent / 2, "host": "h\x1b[2J",
                "gets_per_second": gets, "paths": ["tcp"], "program": "vllm", "pid": 7})
        };
        json!({"cluster_id": "pool", "state": "serving", "version": "0.1.0", "uptime_seconds": 5.0,
            "problems": [{"severity": "error", "message": "the log is lost"}],
            "memory": {"capacity_bytes": 1024, "used_bytes": 512, "objects": 3},
            "rates": {"gets": 10.0, "get_hits": 5.0}, "latency_us": {"get": {"p50": 20.0, "p99": 300.0}},
            "history": {"gets": [1.0, 2.0, 4.0], "get_hit_ratio": [null, 0.5]},
            "clients": [client("node-a:1", "ok", 1024, 0.0), client("node-b:1", "away", 1024, 0.0),
                client("app:1", "ok", 0, 12.0)]})
    }

    /// What the terminal shows.
    fn screen(view: &mut View, silent: Option<&str>) -> String {
        let mut terminal = Terminal::new(TestBackend::new(120, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &status(), silent, view)).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(usize::from(buffer.area.width));
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned() + "\n").collect()
    }

    fn press(view: &mut View, code: KeyCode) -> bool {
        is_end(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)), view)
    }

    #[test]
    fn what_is_wrong_stands_at_the_top_and_nodes_that_are_away_before_others() {
        let screen = screen(&mut View::default(), Some("no answer for 4.0 s: x"));
        let lines: Vec<&str> = screen.lines().collect();
        assert!(lines[0].starts_with("pool  serving  version 0.1.0"), "{screen}");
        assert_eq!((lines[1], lines[2]), ("! no answer for 4.0 s: x", "! the log is lost"));
        assert!(screen.contains("512 B of 1.0 KB") && screen.contains("gets 50.0 %"), "{screen}");
        assert!(screen.find("node-b:1").unwrap() < screen.find("node-a:1").unwrap(), "{screen}");
        assert!(!screen.contains("app:1") && !screen.contains('\x1b'), "{screen}");
    }

    #[test]
    fn keys_change_what_is_shown_and_one_ends_it() {
        let mut view = View::default();
        assert!(!press(&mut view, KeyCode::Char('c')));
        assert!(screen(&mut view, None).contains("app:1"));
        press(&mut view, KeyCode::Char('/'));
        "app".chars().for_each(|letter| assert!(!press(&mut view, KeyCode::Char(letter))));
        assert!(!press(&mut view, KeyCode::Char('q')), "it is a letter of the filter");
        press(&mut view, KeyCode::Backspace);
        press(&mut view, KeyCode::Enter);
        let filtered = screen(&mut view, None);
        assert!(filtered.contains("app:1") && !filtered.contains("node-a:1"), "{filtered}");
        (0..100).for_each(|_| _ = press(&mut view, KeyCode::Char('s')));
        (0..100).for_each(|_| _ = press(&mut view, KeyCode::PageDown));
        assert!(screen(&mut view, None).contains("app:1"), "however far, something is shown");
        assert!(press(&mut view, KeyCode::Char('q')));
    }

    #[test]
    fn a_terminal_of_a_few_letters_is_no_reason_to_fall() {
        for (width, height) in [(1, 1), (10, 3), (40, 8)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &status(), None, &mut View::default())).unwrap();
        }
        let mut terminal = Terminal::new(TestBackend::new(80, 20)).unwrap();
        terminal.draw(|frame| draw(frame, &json!({}), None, &mut View::default())).unwrap();
    }
}
