//! What the store says of its own accord: lines on stderr, as the reference's.
//!
//! The process's logging belongs to the application; these lines come from the
//! store's own calls and threads only, and `MC_LOG_LEVEL` sets how many.

use std::sync::OnceLock;

use mooncake_settings::environment;
use tracing::Dispatch;
use tracing::level_filters::LevelFilter;

/// Runs a call with the store's log in place.
pub fn logging<T>(body: impl FnOnce() -> T) -> T {
    static LOG: OnceLock<Dispatch> = OnceLock::new();
    tracing::dispatcher::with_default(LOG.get_or_init(open), body)
}

fn open() -> Dispatch {
    // A text that names none is what `setup` fails with.
    let level = environment::variable("MC_LOG_LEVEL").and_then(|text| environment::log_level(&text));
    let level = level.unwrap_or("info").parse().unwrap_or(LevelFilter::INFO);
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false)
        .finish()
        .into()
}
