//! Every flag of `mooncake tier`.

use crate::setting::{Setting, Type};

const METRICS_ADDRESS: Setting = Setting::supported(
    "metrics_address",
    Type::Text,
    "127.0.0.1:9003",
    "where the master has its pages: HOST:PORT of its --metrics_host and --metrics_port",
);

/// `mooncake tier list`, in the order of `--help`.
pub(crate) const LIST: &[Setting] =
    &[METRICS_ADDRESS, Setting::supported("json", Type::Bool, "false", "JSON, with everything, instead of a table")];

/// `mooncake tier forget`, in the order of `--help`.
pub(crate) const FORGET: &[Setting] = &[METRICS_ADDRESS];
