//! Log lines of the binary's processes.

use std::io::stderr;

use tracing_subscriber::EnvFilter;

/// Sends log lines to stderr. `RUST_LOG` decides which; else `MC_LOG_LEVEL`; else `level`.
pub fn start(level: &str) {
    let wanted =
        ["RUST_LOG", "MC_LOG_LEVEL"].iter().find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()));
    let filter = EnvFilter::new(wanted.as_deref().unwrap_or(level).to_ascii_lowercase());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_target(false).with_ansi(false).init();
}
