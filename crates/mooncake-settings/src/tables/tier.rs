//! Every flag of `mooncake tier`.

use crate::setting::Setting;
use crate::tables::pool::{JSON, MASTER, METRICS_ADDRESS};

/// `mooncake tier list`, in the order of `--help`.
pub(crate) const LIST: &[Setting] = &[MASTER, JSON, METRICS_ADDRESS];

/// `mooncake tier forget`, in the order of `--help`.
pub(crate) const FORGET: &[Setting] = &[MASTER, METRICS_ADDRESS];
