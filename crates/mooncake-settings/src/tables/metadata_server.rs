//! Every flag of the HTTP metadata server.

use crate::setting::{Setting, Type};

/// Flags in the order of `--help`.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::supported("host", Type::Text, "0.0.0.0", "address to listen on: IPv4, IPv6 or a name"),
    Setting::supported("port", Type::Port, "8080", "port to listen on; 0: any free port, printed at start"),
    Setting::supported("log_level", Type::LogLevel, "INFO", "TRACE, DEBUG, INFO, WARNING or ERROR"),
];
