//! The integers of Mooncake, that calls of Python return and pages answer: what each means, and what to do.
#![forbid(unsafe_code)]

/// One integer.
#[derive(Debug, Clone, Copy)]
pub struct Code {
    /// The integer.
    pub number: i64,
    /// What Mooncake calls it.
    pub name: &'static str,
    /// Class of `mooncake.errors`, or "": what no call of Python returns.
    pub exception: &'static str,
    /// What it means here.
    pub meaning: &'static str,
    /// What to do about it; empty: nothing.
    pub remedy: &'static str,
}

const fn is(number: i64, name: &'static str, exception: &'static str, meaning: &'static str) -> Code {
    Code { number, name, exception, meaning, remedy: "" }
}

impl Code {
    const fn then(self, remedy: &'static str) -> Code {
        Code { remedy, ..self }
    }
}

/// See its meaning.
pub const DONE: Code = is(0, "OK", "", "stored, removed, done");
/// See its meaning.
pub const INTERNAL_ERROR: Code = is(-1, "INTERNAL_ERROR", "InternalError", "a defect; please report it")
    .then("report it, with the log of the process and of the master");
/// See its meaning.
pub const NO_SPACE: Code = is(-200, "NO_AVAILABLE_HANDLE", "NoSpace", "the pool has no room for the object").then(
    "lend more memory, put a tier behind it (docs/tiers.md), or look at what holds the room: `mooncake \
     status` tells what is pinned and unfinished",
);
/// See its meaning.
pub const INVALID_KEY: Code =
    is(-400, "INVALID_KEY", "InvalidKey", "no object can have this key").then("a key is 1 to 65,536 bytes");
/// See its meaning.
pub const INVALID: Code =
    is(-600, "INVALID_PARAMS", "InvalidParams", "the arguments make no sense, or the store is not set up")
        .then("`last_error()` names the argument; a store has to be set up first, and not be closed");
/// See its meaning.
pub const FORKED_CHILD: Code =
    is(-601, "ILLEGAL_CLIENT", "Forked", "this process was forked from the one that set the store up")
        .then("set a store up in the child itself, after the fork");
/// See its meaning.
pub const BUSY: Code = is(-703, "REPLICA_IS_NOT_READY", "NotReady", "another put of the key is under way")
    .then("wait until the other put has ended, at most its deadline (--put_start_discard_timeout_sec)");
/// See its meaning.
pub const MISSING: Code = is(-704, "OBJECT_NOT_FOUND", "NotFound", "no such object")
    .then("compute it, and put it; `last_error()` says where its owner is only away");
/// See its meaning.
pub const EXISTS: Code =
    is(-705, "OBJECT_ALREADY_EXISTS", "AlreadyExists", "the object that a put session was to make is there")
        .then("take the object that is there, or replace it with an upsert");
/// See its meaning.
pub const PROTECTED: Code = is(-706, "OBJECT_HAS_LEASE", "Protected", "looked up a moment ago")
    .then("wait for two seconds (--default_kv_lease_ttl), or force the removal");
/// See its meaning.
pub const SESSION_OVER: Code = is(
    -707,
    "LEASE_EXPIRED",
    "SessionOver",
    "the get or put session of the key is over: what it looked up or reserved is its own no more",
)
.then("begin another session, and read or write again");
/// See its meaning.
pub const TRANSFER: Code = is(-800, "TRANSFER_FAIL", "TransferFailed", "the bytes could not be moved")
    .then("look at the peer that `last_error()` names, and at the network to it");
/// See its meaning.
pub const CHECKSUM: Code =
    is(-801, "CHECKSUM_MISMATCH", "ChecksumMismatch", "the bytes that arrived are not the object's")
        .then("nothing was returned; if it comes again, look at that host's memory and disks");
/// See its meaning.
pub const MASTER: Code = is(-900, "RPC_FAIL", "MasterUnreachable", "no master answers, or it refused the call").then(
    "start the master, or name it: HOST:PORT of its control port, 50051 by default; `mooncake doctor` \
     looks at what is between",
);
/// See its meaning.
pub const TIMEOUT: Code = is(-901, "RPC_TIMEOUT", "Timeout", "it took too long")
    .then("look at the load of the master and of the peer that `last_error()` names");
/// See its meaning.
pub const NOT_NOW: Code = is(
    -1011,
    "UNAVAILABLE_IN_CURRENT_MODE",
    "",
    "over HTTP only: not in the state that the master is in; it reads its log, stops, or has a log that is not lost",
)
.then("ask again when `/readyz` answers with 200");
/// See its meaning.
pub const UNSUPPORTED: Code =
    is(-1012, "NOT_SUPPORTED", "NotSupported", "not in this version, or not in the version of the master")
        .then("`last_error()` names the feature; an older master is upgraded first");
/// See its meaning.
pub const NO_TIERS: Code = is(
    -1300,
    "UNABLE_OFFLOAD",
    "TiersNotAllowed",
    "the store was to have a tier, and the master was started with --enable_offload=false",
)
.then("start the master with --enable_offload=true, or the store without a tier");

// Those of files are returned by what is written in Python.
/// See its meaning.
pub const NO_FILE: Code =
    is(-1100, "FILE_NOT_FOUND", "FileMissing", "the file is not there, or the tensor that was to be saved in it")
        .then("look at the path and at the name of the tensor");
/// See its meaning.
pub const FILE_UNREADABLE: Code =
    is(-1102, "FILE_READ_FAIL", "FileUnreadable", "the file has no tensors that can be read")
        .then("write it anew with `save_tensor_to_safetensor`");
/// See its meaning.
pub const FILE_UNWRITABLE: Code = is(-1103, "FILE_WRITE_FAIL", "FileUnwritable", "the file cannot be written")
    .then("look at the folder's permissions and at the room on its disk");

/// All of them.
pub const CODES: &[Code] = &[
    DONE,
    INTERNAL_ERROR,
    NO_SPACE,
    INVALID_KEY,
    INVALID,
    FORKED_CHILD,
    BUSY,
    MISSING,
    EXISTS,
    PROTECTED,
    SESSION_OVER,
    TRANSFER,
    CHECKSUM,
    MASTER,
    TIMEOUT,
    NOT_NOW,
    UNSUPPORTED,
    NO_FILE,
    FILE_UNREADABLE,
    FILE_UNWRITABLE,
    NO_TIERS,
];
