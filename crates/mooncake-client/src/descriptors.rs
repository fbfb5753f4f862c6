//! How many files this process may have open, and whether that is enough for what its stores use.

use std::sync::atomic::{AtomicUsize, Ordering};

use mooncake_memory::{MOST_DESCRIPTORS_OF_OTHERS, descriptor_limit, raise_descriptor_limit};

/// For calls to the master, what listens, and whatever else the process has open.
const OTHERS: usize = 128;

/// Descriptors that a segment of another process of this host takes: two memories, a presence, a stream and a proof of its
/// owner's end.
pub(crate) const MAPPED: usize = 5;

/// Those of a segment of another host while one call at a time uses it.
pub(crate) const REACHED: usize = 1;

/// Those of a segment that this store lends.
pub(crate) const LENT: usize = 2;

/// Raises the limit of the process, which may be somebody else's.
pub(crate) fn raise() {
    if let Err(error) = raise_descriptor_limit(MOST_DESCRIPTORS_OF_OTHERS) {
        let limit = descriptor_limit();
        tracing::warn!(%error, limit, "the limit of open files cannot be raised");
    }
}

/// Says so where segments, which the words name, take more descriptors than there may be. Each time that they need twice as
/// many as when it was said last.
pub(crate) fn expect(segments: usize, what: &str, each: usize) {
    static SAID: AtomicUsize = AtomicUsize::new(0);
    if let Some(text) = too_few(segments, what, each, descriptor_limit(), &SAID) {
        tracing::warn!("{text}");
    }
}

fn too_few(segments: usize, what: &str, each: usize, limit: usize, said: &AtomicUsize) -> Option<String> {
    let needed = segments.saturating_mul(each).saturating_add(OTHERS);
    if needed <= limit {
        return None;
    }
    let is_news = |said: usize| (needed / 2 >= said).then_some(needed);
    said.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_news).ok()?;
    Some(format!(
        "{segments} {what} take up to {needed} descriptors, and this process may have {limit}: beyond, calls fail. Raise the \
         limit of open files (`ulimit -n`, LimitNOFILE=, --ulimit nofile= of a container){}",
        match std::env::var_os("MOONCAKE_RAISE_DESCRIPTORS") {
            Some(_) => ", or let MOONCAKE_RAISE_DESCRIPTORS raise it",
            None => "",
        }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_too_few_descriptors_is_told_how_many_once_and_again_when_twice_as_many_are_needed() {
        let said = AtomicUsize::new(0);
        let told = |segments| too_few(segments, "segments of others on this host", MAPPED, 1_024, &said);
        assert_eq!(told(100), None);
        let text = told(200).unwrap();
        assert!(
            ["200 segments of others", "1128 descriptors", "may have 1024", "ulimit -n"]
                .iter()
                .all(|part| text.contains(part)),
            "{text}"
        );
        assert_eq!((told(200), told(300)), (None, None));
        assert!(told(500).is_some());
    }
}
