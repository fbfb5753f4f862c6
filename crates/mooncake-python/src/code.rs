//! From typed errors to the integers of Mooncake.

use mooncake_client::{ErrorKind, Health, RemoveOutcome};
use mooncake_codes::{
    BUSY, CHECKSUM, DONE, EXISTS, FORKED_CHILD, INTERNAL_ERROR, INVALID, INVALID_KEY, MASTER, MISSING, NO_SPACE,
    NO_TIERS, PROTECTED, SESSION_OVER, TIMEOUT, TRANSFER, UNSUPPORTED,
};

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
