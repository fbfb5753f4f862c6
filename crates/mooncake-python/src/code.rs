//! The one table from typed errors to the integers of the reference.

use mooncake_client::{ErrorKind, Health, RemoveOutcome};

/// Stored, removed, done.
pub const OK: i64 = 0;
/// What an existence check says of a key that nobody has, or that nobody can be asked about.
pub const ABSENT: i64 = 0;
/// INTERNAL_ERROR.
pub const INTERNAL: i64 = -1;
/// INVALID_PARAMS; also what a store that is not set up answers.
pub const INVALID_PARAMS: i64 = -600;
/// REPLICA_IS_NOT_READY: another put of the key is under way.
const NOT_READY: i64 = -703;
/// OBJECT_NOT_FOUND.
pub const NOT_FOUND: i64 = -704;
/// OBJECT_HAS_LEASE: looked up a moment ago.
const HAS_LEASE: i64 = -706;

/// The integer of an error.
pub fn code(kind: ErrorKind) -> i64 {
    match kind {
        ErrorKind::NoSpace => -200,
        ErrorKind::InvalidKey => -400,
        ErrorKind::InvalidParams | ErrorKind::Closed | ErrorKind::Setup => INVALID_PARAMS,
        ErrorKind::Forked => -601,
        ErrorKind::Busy => NOT_READY,
        ErrorKind::NotFound => NOT_FOUND,
        ErrorKind::Protected => HAS_LEASE,
        ErrorKind::Transfer => -800,
        ErrorKind::Checksum => -801,
        ErrorKind::MasterUnreachable | ErrorKind::Refused => -900,
        ErrorKind::Timeout => -901,
        ErrorKind::Unsupported => -1012,
        // An interrupt becomes the exception that its signal handler raised.
        _ => INTERNAL,
    }
}

/// The integer of a remove.
pub fn removed(outcome: RemoveOutcome) -> i64 {
    match outcome {
        RemoveOutcome::Removed => OK,
        RemoveOutcome::Missing => NOT_FOUND,
        RemoveOutcome::Protected => HAS_LEASE,
        RemoveOutcome::Busy => NOT_READY,
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
