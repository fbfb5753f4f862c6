//! How many files and connections the process may have open.

/// Raises the limit as far as it may be, and returns what it is now: a connection is a descriptor, and the usual soft
/// limit is 1,024 of them.
pub fn raise_limit() -> usize {
    mooncake_os::raise_descriptor_limit(usize::MAX).unwrap_or_else(|error| {
        let limit = mooncake_os::descriptor_limit();
        let advice = "raise `ulimit -n`, or LimitNOFILE of the unit";
        tracing::warn!(%error, limit, advice, "the limit of open files cannot be raised");
        limit
    })
}
