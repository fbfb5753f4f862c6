//! What the store says of its own accord: lines on stderr, as the reference's.
//!
//! The process's logging belongs to the application; these lines come from the
//! store's own calls and threads only, and `MC_LOG_LEVEL` sets how many.

use std::sync::OnceLock;

use mooncake_settings::environment;
use tracing::Dispatch;
use tracing::level_filters::LevelFilter;

use crate::notice::say_once;

/// Runs a call with the store's log in place.
pub fn logging<T>(body: impl FnOnce() -> T) -> T {
    static LOG: OnceLock<Dispatch> = OnceLock::new();
    tracing::dispatcher::with_default(LOG.get_or_init(open), body)
}

fn open() -> Dispatch {
    let text = environment::variable("MC_LOG_LEVEL").unwrap_or_default();
    // How much is said is no reason to refuse to work.
    let level = environment::log_level(&text).unwrap_or_else(|| {
        say_once(&format!("MC_LOG_LEVEL={text:?} is none of TRACE, DEBUG, INFO, WARNING, ERROR, OFF; INFO is taken"));
        "info"
    });
    let level = level.parse().unwrap_or(LevelFilter::INFO);
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false)
        .finish()
        .into()
}
