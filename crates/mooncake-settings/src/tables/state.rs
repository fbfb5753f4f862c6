//! Every flag of `mooncake state`.

use crate::setting::{Setting, Type};

const STATE_DIR: Setting = Setting::done(
    "state_dir",
    Type::Text,
    "",
    "folder with state folders; default: where a master of this user makes its own",
);
const WITNESS_DIR: Setting = Setting::done("witness_dir", Type::Text, "/dev/shm", "folder with the witnesses of logs");
const ALL: Setting =
    Setting::done("all", Type::Bool, "false", "list witnesses of no folder one by one, not their number");

/// `mooncake state ls`, in the order of `--help`.
pub(crate) const LS: &[Setting] = &[
    STATE_DIR,
    WITNESS_DIR,
    ALL,
    Setting::done("json", Type::Bool, "false", "JSON, with everything, instead of a table"),
];

/// `mooncake state gc`, in the order of `--help`.
pub(crate) const GC: &[Setting] = &[
    Setting::done("name", Type::Text, "", "state folders to remove, by their names, with commas between them"),
    Setting::done("older_than", Type::Duration, "", "removes folders and witnesses that were not written for so long"),
    Setting::done("dry_run", Type::Bool, "false", "say what would go, and remove nothing"),
    STATE_DIR,
    WITNESS_DIR,
];
