//! What the store says of its own accord: lines on stderr, as the reference's.
//!
//! The process's logging belongs to the application; these lines come from the
//! store's own calls and threads only, and `MC_LOG_LEVEL` sets how many.

use std::sync::OnceLock;

use tracing::Dispatch;
use tracing::level_filters::LevelFilter;

use crate::notice::say_once;

/// Runs a call with the store's log in place.
pub fn logging<T>(body: impl FnOnce() -> T) -> T {
    static LOG: OnceLock<Dispatch> = OnceLock::new();
    tracing::dispatcher::with_default(LOG.get_or_init(open), body)
}

fn open() -> Dispatch {
    let text = std::env::var("MC_LOG_LEVEL").unwrap_or_default();
    let level = level(&text).unwrap_or_else(|| {
        say_once(&format!("MC_LOG_LEVEL={text:?} is none of TRACE, DEBUG, INFO, WARNING, ERROR, OFF; INFO is taken"));
        LevelFilter::INFO
    });
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false)
        .finish()
        .into()
}

fn level(text: &str) -> Option<LevelFilter> {
    Some(match text.trim().to_ascii_uppercase().as_str() {
        "" | "INFO" => LevelFilter::INFO,
        "TRACE" => LevelFilter::TRACE,
        "DEBUG" => LevelFilter::DEBUG,
        "WARNING" | "WARN" => LevelFilter::WARN,
        "ERROR" => LevelFilter::ERROR,
        "OFF" => LevelFilter::OFF,
        _ => return None,
    })
}
