//! Calls that use their callers' memory: counted, so that the engine's end waits for them.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use mooncake_os::Deadline;
use parking_lot::{Condvar, Mutex};

use crate::error::EngineError;

thread_local! {
    /// Calls of this thread that are under way: it must not wait for its own.
    static INSIDE: RefCell<Vec<*const Calls>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug, Default)]
pub(crate) struct Calls {
    under_way: AtomicUsize,
    closed: AtomicBool,
    /// Notified of each that ends after [`Calls::close`].
    ended: Condvar,
    lock: Mutex<()>,
}

/// A call that is under way; the thread that began it ends it.
pub(crate) struct Call<'a> {
    calls: &'a Calls,
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        INSIDE.with_borrow_mut(|inside| inside.pop());
        self.calls.under_way.fetch_sub(1, Ordering::SeqCst);
        if self.calls.is_closed() {
            let _told = self.calls.lock.lock();
            self.calls.ended.notify_all();
        }
    }
}

impl Calls {
    /// Counts a call in, until the answer is dropped; an error after [`Calls::close`].
    pub fn enter(&self) -> Result<Call<'_>, EngineError> {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        INSIDE.with_borrow_mut(|inside| inside.push(self));
        let call = Call { calls: self, of_this_thread: PhantomData };
        if self.is_closed() { Err(EngineError::Closed) } else { Ok(call) }
    }

    /// Lets no call in any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Waits until none is under way. An error at once if only calls of this thread are: it would wait in vain.
    pub fn wait(&self, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let own = INSIDE.with_borrow(|inside| inside.iter().filter(|other| std::ptr::eq(**other, self)).count());
        let under_way = || self.under_way.load(Ordering::SeqCst);
        deadline.park_until(&mut self.lock.lock(), &self.ended, |()| under_way() <= own);
        match under_way() {
            0 => Ok(()),
            calls => Err(EngineError::CallsUnderWay { calls, waited: deadline.waited() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn within(millis: u64) -> Deadline<'static> {
        Deadline::after(Duration::from_millis(millis), &|| false)
    }

    #[test]
    fn who_waits_is_told_of_a_call_that_goes_on_and_of_its_end() {
        let calls = Calls::default();
        std::thread::scope(|scope| {
            let (go, gone) = std::sync::mpsc::channel::<()>();
            let (told, inside) = std::sync::mpsc::channel();
            let calls = &calls;
            scope.spawn(move || {
                let call = calls.enter().unwrap();
                told.send(()).unwrap();
                gone.recv().unwrap();
                drop(call);
            });
            inside.recv().unwrap();
            calls.close();
            assert!(matches!(calls.enter(), Err(EngineError::Closed)));
            let wait = calls.wait(&within(20));
            assert!(matches!(wait, Err(EngineError::CallsUnderWay { calls: 1, .. })), "{wait:?}");
            go.send(()).unwrap();
            calls.wait(&within(60_000)).unwrap();
        });
    }

    #[test]
    fn a_call_of_another_engine_keeps_nobody() {
        let (ours, others) = (Calls::default(), Calls::default());
        let _inside = others.enter().unwrap();
        ours.close();
        ours.wait(&within(0)).unwrap();
        let own = others.wait(&within(60_000));
        assert!(matches!(own, Err(EngineError::CallsUnderWay { calls: 1, .. })), "{own:?}");
    }
}
