//! Lines that are said once a process.

use std::collections::HashSet;

use mooncake_settings::environment::{self, Reader};
use parking_lot::Mutex;

static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// A warning of the log, the first time only. Within a call.
pub fn say_once(line: &str) {
    if SAID.lock().get_or_insert_default().insert(line.to_owned()) {
        tracing::warn!("{line}");
    }
}

/// Which variables do nothing for stores, or for engines; each once a process.
pub fn warn_ignored_variables(reader: Reader) {
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    environment::remarks(reader, variables).iter().for_each(|remark| say_once(remark));
}
