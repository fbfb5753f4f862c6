//! Log lines of the binary's processes: to stderr, and to a journal where one
//! is asked for. A line that cannot be written (a full disk, a closed pipe) is lost; the process goes on.

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use mooncake_master::Events;
use mooncake_settings::{CLIENT, Given, environment};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::journal::Journal;
use crate::terminal::{Paint, has_colour, shows_colour};

/// Begins to log as the settings say. `RUST_LOG` decides what; else `--v` and
/// `--minloglevel`; else, for a storage node, `MC_LOG_LEVEL`; else everything from information on.
/// A journal that cannot be made is an error. What is logged is told to `events`, too.
pub fn start(program: &str, given: &Given, events: Option<Arc<Events>>) -> io::Result<()> {
    let folder = given.text("log_dir").filter(|folder| !folder.is_empty());
    let mut made = None;
    let journal = match folder {
        Some(folder) => {
            made = (!Path::new(folder).exists()).then_some(folder);
            let most = given.number::<u64>("max_log_size").unwrap_or(1800);
            let kept = given.number_or_default("max_log_files");
            Some(Arc::new(Mutex::new(Journal::open(Path::new(folder), program, most << 20, kept)?)))
        }
        None => None,
    };
    begin(&level(program, given), journal, given.text_or_default("log_format") == "json", events);
    if let Some(folder) = made {
        tracing::info!("--log_dir={folder}: there was no such folder, it was made");
    }
    Ok(())
}

/// One line with the settings that were chosen, and where.
pub fn say_settings(chosen: impl IntoIterator<Item = (&'static str, String, String)>) {
    let told: Vec<String> =
        chosen.into_iter().map(|(name, value, source)| format!("{name}={value} ({source})")).collect();
    if !told.is_empty() {
        tracing::info!("settings: {}", told.join(", "));
    }
}

/// Says why a program ends: in its log, with the time, once there is one that takes errors.
pub fn fail(program: &str, error: &dyn std::error::Error) {
    if tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!("{program}: {error}");
    } else {
        print_stderr(&format!("{program}: {error}\n"));
    }
}

/// Prints. A reader that closed the pipe (`| head`) has read enough.
pub fn say(text: &str) {
    _ = say_more(text);
}

/// Prints, and says whether there is a reader for more.
pub fn say_more(text: &str) -> bool {
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

/// Prints a line for which scripts wait, at any log level, with the time that log lines beside it have.
pub fn announce(line: &str) {
    let mut time = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let paint = Paint(has_colour());
    say(&format!("{}  {} {line}\n", paint.dim(&time), paint.green("INFO")));
}

/// Writes to stderr what no log line tells. A reader that closed the pipe misses it.
pub fn print_stderr(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Begins to log to stderr from a level of `MC_LOG_LEVEL`'s kind on.
pub fn start_at(level: &str) {
    start_in(level, "text");
}

/// The same in a format of `--log_format`.
pub fn start_in(level: &str, format: &str) {
    let level = environment::log_level(level).expect("checked when it was set");
    begin(level, None, format == "json", None);
}

fn begin(level: &str, journal: Option<Arc<Mutex<Journal>>>, is_json: bool, events: Option<Arc<Events>>) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    // Colours are for a terminal alone: a journal is read by other programs, too. It comes first: the fields of a span
    // are written once, as the first layer writes them.
    let journal = journal.map(|journal| lines(move || JournalLine(journal.clone()), is_json, false));
    let stderr = lines(|| StderrLine, is_json, shows_colour(&io::stderr()));
    tracing_subscriber::registry().with(filter).with(journal).with(stderr).with(events.map(Told)).init();
}

/// A layer that writes lines somewhere.
fn lines<S, W>(
    to: impl Fn() -> W + Send + Sync + 'static,
    is_json: bool,
    in_colour: bool,
) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Write + 'static,
{
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(to)
        // It would say on stderr that it could not write to stderr, and panic.
        .log_internal_errors(false)
        .with_target(false)
        .with_ansi(in_colour && !is_json);
    match is_json {
        true => layer.json().flatten_event(true).with_current_span(false).boxed(),
        false => layer.boxed(),
    }
}

/// What is logged, for those who read it elsewhere.
struct Told(Arc<Events>);

impl<S: Subscriber> Layer<S> for Told {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        self.0.tell(event);
    }
}

fn level(program: &str, given: &Given) -> String {
    let level = match (given.number::<i32>("v"), given.number::<i32>("minloglevel")) {
        (Some(1..), _) => "debug",
        (_, Some(2..)) => "error",
        (_, Some(1)) => "warn",
        // A variable for clients: the lines of the master's start are waited for by scripts.
        (None, None) if program == CLIENT.name => {
            let wanted = environment::variable("MC_LOG_LEVEL").unwrap_or_default();
            environment::log_level(&wanted).unwrap_or_else(|| {
                print_stderr(&format!(
                    "MC_LOG_LEVEL={wanted:?} is none of TRACE, DEBUG, INFO, WARNING, ERROR, OFF; INFO is taken\n"
                ));
                "info"
            })
        }
        _ => "info",
    };
    level.to_owned()
}

/// Takes a line, which comes in one piece, and loses it where it cannot be written.
struct StderrLine;

impl Write for StderrLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The same for a journal.
struct JournalLine(Arc<Mutex<Journal>>);

impl Write for JournalLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).write_line(line) {
            // The line itself follows on stderr.
            print_stderr(&format!("journal: {error}\n"));
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
