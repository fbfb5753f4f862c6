//! Every flag of `mooncake state`.

use crate::setting::{Setting, Type};

const STATE_DIR: Setting = Setting::supported(
    "state_dir",
    Type::Text,
    "",
    "folder with state folders; default: where a master of this user makes its own",
);
const WITNESS_DIR: Setting =
    Setting::supported("witness_dir", Type::Text, "/dev/shm", "folder with the witnesses of logs");
const ALL: Setting =
    Setting::supported("all", Type::Bool, "false", "list witnesses of no folder one by one, not their number");

/// `mooncake state ls`, in the order of `--help`.
pub(crate) const LS: &[Setting] = &[
    STATE_DIR,
    WITNESS_DIR,
    ALL,
    Setting::supported("json", Type::Bool, "false", "JSON, with everything, instead of a table"),
];

/// `mooncake state gc`, in the order of `--help`.
pub(crate) const GC: &[Setting] = &[
    Setting::supported("name", Type::Text, "", "state folders to remove, by their names, with commas between them"),
    Setting::supported(
        "older_than",
        Type::Duration,
        "",
        "removes folders and witnesses that were not written for so long, also witnesses of logs outside state_dir",
    ),
    Setting::supported("dry_run", Type::Bool, "false", "say what would go, and remove nothing"),
    STATE_DIR,
    WITNESS_DIR,
];
