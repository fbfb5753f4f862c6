//! The end of a store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use mooncake_os::forked;
use mooncake_wire::message::{CloseSession, request};

use crate::error::ErrorKind;
use crate::inner::Inner;
use crate::segments::owner::SegmentOwner;

impl Inner {
    /// See [`crate::Store::close`].
    pub(crate) fn close(&self) {
        if forked() || self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.shared.control.wants.close();
        self.reporter.get().into_iter().for_each(thread::Thread::unpark);
        let control = &self.shared.control;
        // Before the memory goes: what it has under order is written still.
        self.shared.tiers.close(true);
        if let Some(owner) = self.shared.owner.get() {
            owner.close();
        }
        self.close_put_sessions();
        self.shared.links.close();
        self.get_sessions.lock().clear();
        // What the master is told next is final: no call that is under way takes a view after it.
        if !control.pins.lock().seal() {
            // The anchor goes on for the views' sake and says goodbye after the last one.
            control.end();
            return;
        }
        let over = control.finish(
            "the end of the session",
            request::Body::CloseSession(CloseSession {}),
            control.lookup_timeout,
        );
        if let Err(error) = over
            && !matches!(error.kind(), ErrorKind::Refused | ErrorKind::Closed)
        {
            // It may hold pins of calls that were given up: the anchor tells it once it answers.
            tracing::debug!(%error, "the master does not know yet that this client is gone");
            control.end();
            return;
        }
        control.stop();
        if let Some(anchor) = self.anchor.lock().take() {
            // It only panics if one of its invariants is broken; that has been reported.
            let _ = anchor.join();
        }
    }
}

impl Inner {
    /// See [`crate::Store::leave`].
    pub(crate) fn leave(&self) {
        let control = &self.shared.control;
        // Nobody would come to memory that is not held, or for which the master does not wait.
        let is_kept = |owner: &Arc<SegmentOwner>| {
            // As it is by now, and not a second ago.
            owner.look_after_kept();
            owner.is_kept()
        };
        let kept = control.kept.get().and_then(|_| self.shared.owner.get());
        if forked() || self.closed.load(Ordering::Acquire) || !kept.is_some_and(is_kept) {
            return self.close();
        }
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        control.wants.close();
        self.reporter.get().into_iter().for_each(thread::Thread::unpark);
        if let Some(owner) = self.shared.owner.get() {
            owner.stop_keeping();
        }
        // What the next process has of the memory it has of the tiers as well, and writes then.
        self.shared.tiers.close(false);
        self.close_put_sessions();
        self.shared.links.close();
        // Neither a goodbye nor the end of the session: its process's end is the master's to see.
        control.stop();
        if let Some(anchor) = self.anchor.lock().take() {
            // It only panics if one of its invariants is broken; that has been reported.
            let _ = anchor.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Where nothing has said that it closes: what outlives a crash outlives this.
        self.leave();
    }
}
