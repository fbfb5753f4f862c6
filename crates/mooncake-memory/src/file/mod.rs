//! Memory that has a descriptor: memfds, files, how they are mapped, and what limits them.

pub(crate) mod file_range;
pub(crate) mod limits;
pub(crate) mod mapped_file;
pub(crate) mod memfd;
