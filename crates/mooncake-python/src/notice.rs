//! Lines that are said once a process.

use std::collections::HashSet;

use parking_lot::Mutex;

static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// A warning of the log, the first time only. Within a call.
pub fn say_once(line: &str) {
    if SAID.lock().get_or_insert_default().insert(line.to_owned()) {
        tracing::warn!("{line}");
    }
}
