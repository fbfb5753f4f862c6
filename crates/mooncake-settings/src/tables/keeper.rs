//! Every flag of `mooncake keeper`.

use crate::setting::{Setting, Type};

/// Flags in the order of `--help`.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::supported("socket", Type::Text, "", "Unix socket at which the storage node finds it: a path"),
    Setting::supported("log_level", Type::LogLevel, "INFO", "TRACE, DEBUG, INFO, WARNING or ERROR"),
];
