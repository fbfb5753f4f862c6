//! The one table from typed errors to the integers of Mooncake.

use mooncake_client::{ErrorKind, Health, RemoveOutcome};

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
}

const fn is(number: i64, name: &'static str, exception: &'static str, meaning: &'static str) -> Code {
    Code { number, name, exception, meaning }
}

const DONE: Code = is(0, "OK", "", "stored, removed, done");
const INTERNAL_ERROR: Code = is(-1, "INTERNAL_ERROR", "InternalError", "a defect; please report it");
const NO_SPACE: Code = is(-200, "NO_AVAILABLE_HANDLE", "NoSpace", "the pool has no room for the object");
const INVALID_KEY: Code = is(-400, "INVALID_KEY", "InvalidKey", "no object can have this key");
const INVALID: Code =
    is(-600, "INVALID_PARAMS", "InvalidParams", "the arguments make no sense, or the store is not set up");
const FORKED_CHILD: Code =
    is(-601, "ILLEGAL_CLIENT", "Forked", "this process was forked from the one that set the store up");
const BUSY: Code = is(-703, "REPLICA_IS_NOT_READY", "NotReady", "another put of the key is under way");
const MISSING: Code = is(-704, "OBJECT_NOT_FOUND", "NotFound", "no such object");
const EXISTS: Code =
    is(-705, "OBJECT_ALREADY_EXISTS", "AlreadyExists", "the object that a put session was to make is there");
const PROTECTED: Code = is(-706, "OBJECT_HAS_LEASE", "Protected", "looked up a moment ago");
const SESSION_OVER: Code = is(
    -707,
    "LEASE_EXPIRED",
    "SessionOver",
    "the get or put session of the key is over: what it looked up or reserved is its own no more",
);
const TRANSFER: Code = is(-800, "TRANSFER_FAIL", "TransferFailed", "the bytes could not be moved");
const CHECKSUM: Code = is(-801, "CHECKSUM_MISMATCH", "ChecksumMismatch", "the bytes that arrived are not the object's");
const MASTER: Code = is(-900, "RPC_FAIL", "MasterUnreachable", "no master answers, or it refused the call");
const TIMEOUT: Code = is(-901, "RPC_TIMEOUT", "Timeout", "it took too long");
const NOT_NOW: Code = is(
    -1011,
    "UNAVAILABLE_IN_CURRENT_MODE",
    "",
    "over HTTP only: not in the state that the master is in; it reads its log, stops, or has a log that is not lost",
);
const UNSUPPORTED: Code =
    is(-1012, "NOT_SUPPORTED", "NotSupported", "not in this version, or not in the version of the master");
const NO_TIERS: Code = is(
    -1300,
    "UNABLE_OFFLOAD",
    "TiersNotAllowed",
    "the store was to have a tier, and the master was started with --enable_offload=false",
);

// Those of files are returned by what is written in Python.
const NO_FILE: Code =
    is(-1100, "FILE_NOT_FOUND", "FileMissing", "the file is not there, or the tensor that was to be saved in it");
const FILE_UNREADABLE: Code = is(-1102, "FILE_READ_FAIL", "FileUnreadable", "the file has no tensors that can be read");
const FILE_UNWRITABLE: Code = is(-1103, "FILE_WRITE_FAIL", "FileUnwritable", "the file cannot be written");

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

/// Stored, removed, done.
pub const OK: i64 = DONE.number;
/// What an existence check says of a key that is not there, or that no master can be asked about.
pub const ABSENT: i64 = 0;
/// A defect.
pub const INTERNAL: i64 = INTERNAL_ERROR.number;
/// Also what a store that is not set up answers.
pub const INVALID_PARAMS: i64 = INVALID.number;
/// A child of the process that set the store up.
pub const FORKED: i64 = FORKED_CHILD.number;
/// No master answers.
pub const MASTER_UNREACHABLE: i64 = MASTER.number;
/// No such object.
pub const NOT_FOUND: i64 = MISSING.number;

/// The integer of an error.
pub fn code(kind: ErrorKind) -> i64 {
    let code = match kind {
        ErrorKind::NoSpace => NO_SPACE,
        ErrorKind::InvalidKey => INVALID_KEY,
        ErrorKind::InvalidParams | ErrorKind::Closed | ErrorKind::Setup => INVALID,
        ErrorKind::Forked => FORKED_CHILD,
        ErrorKind::Busy => BUSY,
        ErrorKind::NotFound => MISSING,
        ErrorKind::Exists => EXISTS,
        ErrorKind::SessionOver => SESSION_OVER,
        ErrorKind::Transfer => TRANSFER,
        ErrorKind::Checksum => CHECKSUM,
        ErrorKind::MasterUnreachable | ErrorKind::Refused => MASTER,
        ErrorKind::Timeout => TIMEOUT,
        ErrorKind::Unsupported => UNSUPPORTED,
        ErrorKind::TiersNotAllowed => NO_TIERS,
        // An interrupt becomes the exception that its signal handler raised.
        _ => INTERNAL_ERROR,
    };
    code.number
}

/// The integer of a remove.
pub fn removed(outcome: RemoveOutcome) -> i64 {
    match outcome {
        RemoveOutcome::Removed => OK,
        RemoveOutcome::Missing => NOT_FOUND,
        RemoveOutcome::Protected => PROTECTED.number,
        RemoveOutcome::Busy => BUSY.number,
    }
}

/// What `health_check` answers.
pub fn health(health: Health) -> i64 {
    match health {
        Health::Ok => 0,
        Health::Closed => 1,
        Health::MasterUnreachable => 2,
    }
}
