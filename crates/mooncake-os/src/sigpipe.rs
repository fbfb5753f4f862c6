//! A broken pipe is an error of the call here, and no signal to the program.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

/// Keeps `SIGPIPE` from this thread for as long as it lives: what comes meanwhile is taken away.
#[derive(Debug)]
pub struct NoSignal {
    /// The mask to go back to; `None` if it kept the signal off before.
    before: Option<libc::sigset_t>,
    /// Masks are a thread's.
    _thread: PhantomData<*const ()>,
}

impl NoSignal {
    /// Keeps it from here on.
    #[expect(clippy::new_without_default, reason = "what it does is not a default")]
    pub fn new() -> NoSignal {
        let mut before = MaybeUninit::uninit();
        let only = only_sigpipe();
        // SAFETY: valid sets, of which the second is filled where the call succeeds.
        let before = unsafe {
            let rc = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const only, before.as_mut_ptr());
            (rc == 0).then(|| before.assume_init())
        };
        // SAFETY: a valid set.
        let was_off = |before: &libc::sigset_t| unsafe { libc::sigismember(&raw const *before, libc::SIGPIPE) } == 1;
        NoSignal { before: before.filter(|before| !was_off(before)), _thread: PhantomData }
    }
}

impl Drop for NoSignal {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        let (only, now) = (only_sigpipe(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: valid sets, and a time; what the signal was like is not asked for.
        unsafe {
            libc::sigtimedwait(&raw const only, ptr::null_mut(), &raw const now);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        }
    }
}

fn only_sigpipe() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call fills it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        set.assume_init()
    }
}
