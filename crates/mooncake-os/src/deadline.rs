//! How long a caller waits: until a moment, and only while its hook lets it.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, MutexGuard};

/// Between two looks at what nothing tells of: short at first, as it is most likely over very soon.
const POLL_INTERVAL_MIN: Duration = Duration::from_micros(50);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(5);

/// Until when a call may wait, and the hook of its caller.
///
/// The hook is asked on the caller's thread, and on threads that work for its call, under no lock of this library: it
/// may wait for a lock of the caller's, whose holder waits for what this call holds.
#[derive(Clone, Copy)]
pub struct Deadline<'a> {
    /// When the call began, for what is said of a wait that was too long.
    pub began: Instant,
    /// When it ends.
    pub until: Instant,
    /// Asked at least once a [slice](Deadline::SLICE) while the call waits; true ends it.
    pub interrupted: &'a (dyn Fn() -> bool + Sync),
}

/// Why a call waits no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// Its caller's hook ended it.
    #[error("interrupted")]
    Interrupted,
    /// Its deadline has passed.
    #[error("not done after {0:?}")]
    Expired(Duration),
}

impl Deadline<'static> {
    /// From now on, until that moment; the caller has no hook.
    pub fn at(until: Instant) -> Deadline<'static> {
        Deadline { began: Instant::now(), until, interrupted: &|| false }
    }
}

impl<'a> Deadline<'a> {
    /// Longest wait without a look at the clock and at the caller's hook.
    pub const SLICE: Duration = Duration::from_millis(50);

    /// From now on, for so long.
    pub fn after(time: Duration, interrupted: &'a (dyn Fn() -> bool + Sync)) -> Deadline<'a> {
        let began = Instant::now();
        Deadline { began, until: began + time, interrupted }
    }

    /// The same, but ends after so long at the latest.
    pub fn within(&self, time: Duration) -> Deadline<'a> {
        Deadline { until: self.until.min(Instant::now() + time), ..*self }
    }

    /// Whether its moment has come. The hook is not asked.
    #[inline]
    pub fn has_passed(&self) -> bool {
        Instant::now() >= self.until
    }

    /// What is left, nothing perhaps.
    #[inline]
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// How long to wait until the next look: what is left, at most a [slice](Deadline::SLICE).
    #[inline]
    pub fn slice(&self) -> Duration {
        self.left().min(Deadline::SLICE)
    }

    /// Since its beginning.
    pub fn waited(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether the caller's hook ends the call.
    #[inline]
    pub fn is_interrupted(&self) -> bool {
        (self.interrupted)()
    }

    /// An error if the call is to wait no longer. The hook is asked before the clock: a caller that gave up is told so,
    /// even if it is too late as well.
    pub fn check(&self) -> Result<(), WaitError> {
        if self.is_interrupted() {
            return Err(WaitError::Interrupted);
        }
        if self.has_passed() { Err(WaitError::Expired(self.waited())) } else { Ok(()) }
    }

    /// Looks again and again for what nothing tells of. Whether it is so in the end.
    pub fn wait_until(&self, mut is_so: impl FnMut() -> bool) -> bool {
        let (began, mut asked) = (Instant::now(), None);
        while !is_so() {
            let now = Instant::now();
            if now >= self.until {
                return false;
            }
            if asked.is_none_or(|asked| now.duration_since(asked) >= Deadline::SLICE) {
                if self.is_interrupted() {
                    // It may have become so while the hook was asked.
                    return is_so();
                }
                asked = Some(now);
            }
            std::thread::sleep((now.duration_since(began) / 8).clamp(POLL_INTERVAL_MIN, POLL_INTERVAL_MAX));
        }
        true
    }

    /// Waits for what `changed` tells of, under the lock, which is free while the hook is asked. Whether it is so in
    /// the end.
    pub fn park_until<T>(
        &self,
        state: &mut MutexGuard<'_, T>,
        changed: &Condvar,
        mut is_so: impl FnMut(&T) -> bool,
    ) -> bool {
        while !is_so(state) {
            if self.has_passed() || MutexGuard::unlocked(state, || self.is_interrupted()) {
                return is_so(state);
            }
            if !is_so(state) {
                changed.wait_until(state, self.until.min(Instant::now() + Deadline::SLICE));
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use parking_lot::Mutex;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_caller_that_gave_up_too_late_is_told_that_it_gave_up() {
        assert_eq!(Deadline::after(Duration::ZERO, &|| true).check(), Err(WaitError::Interrupted));
        assert!(matches!(Deadline::after(Duration::ZERO, &|| false).check(), Err(WaitError::Expired(_))));
        assert_eq!(Deadline::after(LONG, &|| false).check(), Ok(()));
    }

    #[test]
    fn the_hook_is_asked_once_a_slice_however_often_it_is_looked() {
        let (asked, looks) = (AtomicU32::new(0), AtomicU32::new(0));
        let hook = || asked.fetch_add(1, Ordering::SeqCst) == 2;
        let began = Instant::now();
        let is_so = || {
            looks.fetch_add(1, Ordering::SeqCst);
            false
        };
        assert!(!Deadline::after(LONG, &hook).wait_until(is_so));
        assert!(began.elapsed() >= 2 * Deadline::SLICE && began.elapsed() < LONG / 10, "{:?}", began.elapsed());
        let (asked, looks) = (asked.into_inner(), looks.into_inner());
        assert!(asked == 3 && looks > 2 * asked, "asked {asked} times in {looks} looks");
    }

    #[test]
    fn a_hook_may_take_the_lock_that_its_call_waits_under() {
        let (state, changed) = (Mutex::new(0), Condvar::new());
        let hook = || {
            *state.lock() += 1;
            *state.lock() > 9
        };
        assert!(Deadline::after(LONG, &hook).park_until(&mut state.lock(), &changed, |count| *count == 2));
        assert!(!Deadline::after(LONG, &hook).park_until(&mut state.lock(), &changed, |count| *count > 99));
    }

    #[test]
    fn a_wait_is_told_of_what_came_at_its_very_end() {
        let (state, changed) = (Mutex::new(false), Condvar::new());
        let hook = || {
            *state.lock() = true;
            true
        };
        assert!(Deadline::after(LONG, &hook).park_until(&mut state.lock(), &changed, |is_so| *is_so));
    }
}
