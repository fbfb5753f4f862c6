//! How many files and connections this process may have open.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As far as a library raises the limit of a process that is not its own: enough for thousands of peers, and little to
/// programs that walk over all descriptors that there could be.
pub const DESCRIPTORS_OF_OTHERS_MAX: usize = 65_536;

/// The limit as it is.
pub fn descriptor_limit() -> usize {
    count(getrlimit(Resource::Nofile).current)
}

/// Raises the limit to `most`, or as far as it may be raised. One that is as high already, or higher, stays. Gives the
/// limit from here on.
///
/// The usual soft limit is 1,024, which is for programs that call `select`; the limit of what such programs may be
/// raised to is 524,288 and more. It is the whole process's, and its children's.
pub fn raise_descriptor_limit(most: usize) -> io::Result<usize> {
    let limit = getrlimit(Resource::Nofile);
    let (now, most) = (count(limit.current), most.min(count(limit.maximum)));
    if now >= most {
        return Ok(now);
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(most as u64), maximum: limit.maximum })?;
    Ok(most)
}

/// Whether a failure says that no descriptor is left, of this process or of its host.
pub fn is_short_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

fn count(limit: Option<u64>) -> usize {
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}
