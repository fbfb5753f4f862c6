//! Whose segment numbers a reply means.

/// A master gives each segment's number once. The next one goes on with them, unless the log that it found had lost its
/// end, or was another one: then it gives the same numbers to other segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Numbering {
    /// Log that the reply names a position in.
    pub log_id: u64,
    /// Process that gave it.
    pub instance: [u8; 16],
}
