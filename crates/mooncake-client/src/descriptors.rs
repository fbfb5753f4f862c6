//! How many files this process may have open, and whether that is enough for what its stores use.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use mooncake_os::{DESCRIPTORS_OF_OTHERS_MAX, descriptor_limit, raise_descriptor_limit};

/// For calls to the master, what listens, and whatever else the process has open.
const OTHERS: usize = 128;

/// Descriptors that a segment of another process of this host takes: two memories, a presence, a stream and a proof of
/// its owner's end.
pub(crate) const MAPPED: usize = 5;

/// Those of a segment of another host while one call at a time uses it.
pub(crate) const REACHED: usize = 1;

/// Those of a segment that this store lends.
pub(crate) const LENT: usize = 2;

/// A store of this process was allowed to raise the limit.
static RAISED: AtomicBool = AtomicBool::new(false);

/// Raises the limit of the process, which may be another program's.
pub(crate) fn raise() {
    RAISED.store(true, Ordering::Relaxed);
    if let Err(error) = raise_descriptor_limit(DESCRIPTORS_OF_OTHERS_MAX) {
        let limit = descriptor_limit();
        tracing::warn!(
            %error, limit,
            "the limit of open files cannot be raised; raise it where the process is started (`ulimit -n`, \
             LimitNOFILE=), if calls fail for want of descriptors"
        );
    }
}

/// Warns where segments, which the words name, take more descriptors than there may be. Each time that they need twice
/// as many as when it was said last of their kind, which the count of descriptors of each is.
pub(crate) fn warn_if_too_few(segments: usize, what: &str, each: usize) {
    static SAID: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    let said = &SAID[usize::from(each == LENT)];
    if let Some(text) = too_few(segments, what, each, (descriptor_limit(), RAISED.load(Ordering::Relaxed)), said) {
        tracing::warn!("{text}");
    }
}

/// The limit comes with whether it was raised as far as it may be.
fn too_few(
    segments: usize,
    what: &str,
    each: usize,
    (limit, is_raised): (usize, bool),
    said: &AtomicUsize,
) -> Option<String> {
    let needed = segments.saturating_mul(each).saturating_add(OTHERS);
    if needed <= limit {
        return None;
    }
    let is_news = |said: usize| (needed / 2 >= said).then_some(needed);
    said.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_news).ok()?;
    Some(format!(
        "{segments} {what} take up to {needed} descriptors, and this process may have {limit}: beyond, calls fail. \
         Raise the limit of open files (`ulimit -n`, LimitNOFILE=, --ulimit nofile= of a container){}",
        if is_raised { "" } else { ", or let this store raise it (MOONCAKE_RAISE_DESCRIPTORS=1)" }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_too_few_descriptors_is_told_how_many_once_and_again_when_twice_as_many_are_needed() {
        let said = AtomicUsize::new(0);
        let told = |segments| too_few(segments, "segments of others on this host", MAPPED, (1_024, true), &said);
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

    #[test]
    fn a_store_that_was_told_not_to_raise_the_limit_is_told_that_it_may() {
        for is_raised in [false, true] {
            let text = too_few(200, "segments", MAPPED, (1_024, is_raised), &AtomicUsize::new(0)).unwrap();
            assert_eq!(text.contains("MOONCAKE_RAISE_DESCRIPTORS=1"), !is_raised, "{text}");
        }
    }
}
