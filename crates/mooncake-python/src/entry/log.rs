//! What the library says of its own accord: lines of Python's logger `mooncake`.
//!
//! Threads say them that must not wait for Python, which a single call of the application may hold for seconds. So a
//! line goes into a queue, and `mooncake-log` hands it over. Before that thread runs, behind the interpreter's exit
//! hooks and in forked children lines go to stderr.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mooncake_os::forked;
use mooncake_settings::environment;
use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;
use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Registry, reload};

use crate::entry::notice::say_once;

/// Lines that wait for Python; more are counted, and lost.
const LINES_MAX: usize = 4_096;
/// Waits end so often, to look around.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Runs a call with the library's log in place.
pub fn logging<T>(body: impl FnOnce() -> T) -> T {
    tracing::dispatcher::with_default(&log().dispatch, body)
}

/// Reads anew how much is to be said: what `MC_LOG_LEVEL` says, or else the logger's own level. Within a call.
pub fn read_level(py: Python<'_>) {
    let text = environment::variable("MC_LOG_LEVEL").unwrap_or_default();
    let variable = (!text.trim().is_empty()).then(|| environment::log_level(&text));
    // How much is said is no reason to refuse to work.
    if variable == Some(None) {
        say_once(&format!(
            "MC_LOG_LEVEL={text:?} is none of TRACE, DEBUG, INFO, WARNING, ERROR, OFF; it is passed over"
        ));
    }
    let level = variable.flatten().and_then(|level| level.parse().ok()).map(number_of);
    let asked = py.import("mooncake._log").and_then(|log| log.call_method1("begin", (level,))?.extract());
    let asked = asked.map_or(LevelFilter::INFO, filter_of);
    let _ = log().level.reload(asked);
    start(py);
}

struct Log {
    dispatch: Dispatch,
    level: reload::Handle<LevelFilter, Registry>,
}

fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let (filter, level) = reload::Layer::new(LevelFilter::INFO);
        let lines = tracing_subscriber::fmt::layer()
            .without_time()
            .with_level(false)
            .with_target(false)
            .with_ansi(false)
            .with_writer(Lines);
        Log { dispatch: tracing_subscriber::registry().with(filter).with(lines).into(), level }
    })
}

/// Python's number of a level.
fn number_of(level: LevelFilter) -> i64 {
    match level.into_level() {
        None => 60,
        Some(Level::ERROR) => 40,
        Some(Level::WARN) => 30,
        Some(Level::INFO) => 20,
        Some(Level::DEBUG) => 10,
        Some(_) => 5,
    }
}

fn filter_of(number: i64) -> LevelFilter {
    match number {
        51.. => LevelFilter::OFF,
        31..=50 => LevelFilter::ERROR,
        21..=30 => LevelFilter::WARN,
        11..=20 => LevelFilter::INFO,
        6..=10 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

// ------------------------------------------------------------------- lines

struct Lines;

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { level: Level::INFO, text: Vec::new() }
    }

    fn make_writer_for(&'a self, of: &Metadata<'_>) -> Line {
        Line { level: *of.level(), text: Vec::new() }
    }
}

/// One line as it is written, and said when that is done.
struct Line {
    level: Level,
    text: Vec<u8>,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut stamp = String::new();
        let _ = tracing_subscriber::fmt::time::SystemTime.format_time(&mut Writer::new(&mut stamp));
        let text = String::from_utf8_lossy(&self.text).trim_end().to_owned();
        say(Said { level: self.level, at: SystemTime::now(), stamp, text });
    }
}

struct Said {
    level: Level,
    at: SystemTime,
    /// The time in words.
    stamp: String,
    text: String,
}

impl Said {
    fn to_stderr(&self) {
        // A closed stderr is no reason for a panic.
        let _ = writeln!(std::io::stderr(), "{} {:>5} {}", self.stamp, self.level, self.text);
    }

    fn to_python(&self, py: Python<'_>) -> PyResult<()> {
        let at = self.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let level = number_of(LevelFilter::from_level(self.level));
        let said = (level, at, &self.stamp, &self.text);
        py.import("mooncake._log")?.call_method1("emit", said).map(drop)
    }
}

// ------------------------------------------------------------ the way to Python

struct Queue {
    lines: VecDeque<Said>,
    lost: u64,
    /// The thread of [`hand_over`] takes them.
    taken: bool,
    /// Some have been taken, and are not said yet.
    busy: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { lines: VecDeque::new(), lost: 0, taken: false, busy: false });
static QUEUED: Condvar = Condvar::new();

fn say(said: Said) {
    // A child has no thread that takes lines, and may have the lock held for ever.
    if forked() {
        return said.to_stderr();
    }
    let mut queue = QUEUE.lock();
    if !queue.taken {
        drop(queue);
        return said.to_stderr();
    }
    if queue.lines.len() >= LINES_MAX {
        queue.lost += 1;
        return;
    }
    queue.lines.push_back(said);
    QUEUED.notify_all();
}

/// Starts the thread, once, and asks Python to have what is left said at its exit.
fn start(py: Python<'_>) {
    static STARTED: OnceLock<bool> = OnceLock::new();
    STARTED.get_or_init(|| {
        let at_exit = || py.import("atexit")?.call_method1("register", (wrap_pyfunction!(end, py)?,)).map(drop);
        if at_exit().is_err() || std::thread::Builder::new().name("mooncake-log".into()).spawn(hand_over).is_err() {
            return false;
        }
        QUEUE.lock().taken = true;
        true
    });
}

fn hand_over() {
    loop {
        let mut queue = QUEUE.lock();
        queue.busy = false;
        QUEUED.notify_all();
        while queue.lines.is_empty() {
            let waited = QUEUED.wait_for(&mut queue, POLL_INTERVAL);
            if queue.lines.is_empty() && waited.timed_out() && !queue.taken && ended() {
                return;
            }
        }
        let (lines, lost) = (std::mem::take(&mut queue.lines), std::mem::take(&mut queue.lost));
        queue.busy = true;
        drop(queue);
        let said = Python::try_attach(|py| say_all(py, &lines, lost));
        if said.is_none() {
            lines.iter().for_each(Said::to_stderr);
        }
    }
}

/// What a handler of the application raises is Python's to tell.
fn say_all<'l>(py: Python<'_>, lines: impl IntoIterator<Item = &'l Said>, lost: u64) {
    let one = |said: &Said| {
        if let Err(error) = said.to_python(py) {
            said.to_stderr();
            error.write_unraisable(py, None);
        }
    };
    lines.into_iter().for_each(one);
    if lost > 0 {
        tracing::dispatcher::with_default(&log().dispatch, || {
            tracing::warn!(lost, "lines of the log were lost: Python took none for too long");
        });
    }
}

static ENDED: OnceLock<()> = OnceLock::new();

fn ended() -> bool {
    ENDED.get().is_some()
}

/// Has Python say what is left; later lines go to stderr.
#[pyfunction]
fn end(py: Python<'_>) {
    let _ = ENDED.set(());
    if forked() {
        return;
    }
    let lines = py.detach(|| {
        let mut queue = QUEUE.lock();
        queue.taken = false;
        if queue.busy {
            QUEUED.wait_for(&mut queue, POLL_INTERVAL);
        }
        std::mem::take(&mut queue.lines)
    });
    say_all(py, &lines, 0);
}
