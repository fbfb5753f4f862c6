//! What each program and library can be told: its flags, its variables, and what becomes of Mooncake's.

pub(crate) mod client;
pub mod engine;
pub(crate) mod engine_tools;
pub(crate) mod families;
pub(crate) mod keeper;
pub(crate) mod master;
pub(crate) mod metadata_server;
pub mod mooncake_config;
pub(crate) mod pool;
pub(crate) mod proxy;
pub(crate) mod simulate;
pub(crate) mod state;
pub(crate) mod tier;

use crate::setting::{Setting, Type};

/// Of every program that serves.
pub(crate) const LOG_FORMAT: Setting = Setting::supported(
    "log_format",
    Type::OneOf(&["text", "json"]),
    "text",
    "how log lines are written: for people, or one JSON object a line",
);
