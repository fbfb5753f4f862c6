//! How many files and connections the process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as it may be, and says what it is now: a connection is a descriptor, and the usual soft limit is
/// 1,024 of them.
pub fn raised() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let is_raised = limit.current == limit.maximum
        || setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
            .inspect_err(|error| tracing::warn!(%error, "the limit of open files stays at {:?}", limit.current))
            .is_ok();
    let most = if is_raised { limit.maximum } else { limit.current };
    most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX)
}
