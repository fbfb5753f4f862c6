//! Every flag of the commands that look at a pool, and use it.

use crate::setting::{Setting, Type};

/// Of every command that speaks to a master.
pub(crate) const MASTER: Setting = Setting::supported(
    "master",
    Type::Text,
    "127.0.0.1:50051",
    "HOST:PORT of the master's control port; without the flag MOONCAKE_MASTER says it",
);

/// Of every command that reads a master's pages.
pub(crate) const METRICS_ADDRESS: Setting = Setting::supported(
    "metrics_address",
    Type::Text,
    "",
    "HOST:PORT of the master's pages, where the one that it tells cannot be reached from here",
);

pub(crate) const JSON: Setting =
    Setting::supported("json", Type::Bool, "false", "JSON, with everything, instead of text for people");

const ENCODED: Setting =
    Setting::supported("encoded", Type::Bool, "false", "keys are percent-encoded, as mooncake ls prints them");

/// `mooncake status`, in the order of `--help`.
pub(crate) const STATUS: &[Setting] = &[
    MASTER,
    JSON,
    Setting::supported("watch", Type::Bool, "false", "once in two seconds, until Ctrl-C"),
    Setting::supported("all", Type::Bool, "false", "every client, not only those that are used most"),
    METRICS_ADDRESS,
];

/// `mooncake top`, in the order of `--help`.
pub(crate) const TOP: &[Setting] = &[MASTER, METRICS_ADDRESS];

/// `mooncake doctor`, in the order of `--help`.
pub(crate) const DOCTOR: &[Setting] = &[MASTER, JSON, METRICS_ADDRESS];

/// `mooncake ls`, in the order of `--help`.
pub(crate) const LS: &[Setting] = &[
    MASTER,
    Setting::supported("limit", Type::U64, "1000", "the most objects that are listed; 0: all"),
    JSON,
    ENCODED,
    METRICS_ADDRESS,
];

/// `mooncake stat`, in the order of `--help`.
pub(crate) const STAT: &[Setting] = &[MASTER, JSON, ENCODED, METRICS_ADDRESS];

/// `mooncake put`, in the order of `--help`.
pub(crate) const PUT: &[Setting] = &[
    MASTER,
    Setting::supported("replace", Type::Bool, "false", "replace what is there"),
    Setting::supported("replicas", Type::Whole(1, 255), "1", "copies in memory, each of another client"),
    ENCODED,
];

/// `mooncake get`, in the order of `--help`.
pub(crate) const GET: &[Setting] = &[MASTER, ENCODED];

/// `mooncake rm`, in the order of `--help`.
pub(crate) const RM: &[Setting] = &[
    MASTER,
    Setting::supported("prefix", Type::Text, "", "remove every object whose key begins so"),
    Setting::supported("force", Type::Bool, "false", "also what was looked up a moment ago"),
    ENCODED,
    METRICS_ADDRESS,
];

/// `mooncake bench`, in the order of `--help`.
pub(crate) const BENCH: &[Setting] = &[
    MASTER,
    Setting::supported("size", Type::Size, "1 MB", "bytes of an object"),
    Setting::supported("count", Type::Whole(1, 1 << 24), "256", "objects of each thread"),
    Setting::supported("threads", Type::Whole(1, 256), "1", "threads that call at a time"),
    Setting::supported("batch", Type::Whole(1, 4096), "1", "objects of one call"),
    Setting::supported("lend", Type::Size, "0", "memory of this machine that is lent to the pool meanwhile"),
    JSON,
];
