//! How a store ends while its process goes on: it is closed as the product closes it, and what is left of it are views
//! and the session that they need.

use std::time::Duration;

use mooncake_client::machine::lending;
use mooncake_client::{Cause, StoreError};
use mooncake_wire::message::{CloseSession, request};

use crate::store::Store;
use crate::store::calls::{LOOKUP_TIMEOUT, NoAnswer};

impl Store {
    /// Takes the segments out of the pool and ends the session. Views survive.
    pub async fn close(self) {
        let inner = &self.inner;
        if inner.closed.replace(true) {
            return;
        }
        inner.wants.close();
        lending::close(&self).await;
        inner.work_ends.set(true);
        self.close_put_sessions().await;
        inner.links.close();
        // What the master is told next is final: no call that is under way takes a view after it.
        if !inner.pins.borrow_mut().seal() {
            // The anchor goes on for the views' sake and says goodbye after the last one.
            inner.network.whims.count(|sum| sum.outlived += 1);
            return self.end();
        }
        match self.finish(request::Body::CloseSession(CloseSession {}), LOOKUP_TIMEOUT).await {
            Ok(_) | Err(NoAnswer::Refused(_) | NoAnswer::Closed) => self.stop(),
            // It may hold pins of calls that were given up: the anchor tells it once it answers.
            Err(_) => self.end(),
        }
    }

    /// Has the anchor end the session with its last view.
    fn end(&self) {
        self.inner.wants.end();
        self.ring();
    }

    /// Ends every later call, and the anchor.
    pub(crate) fn stop(&self) {
        self.inner.stopped.set(true);
        self.ring();
    }

    /// Before every call.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if self.inner.closed.get() { Err(Cause::Closed.into()) } else { Ok(()) }
    }

    /// Whether it has been closed.
    pub fn is_closed(&self) -> bool {
        self.inner.closed.get()
    }

    /// Whether it has been closed and nothing is left of it that another process could hear or see.
    pub(crate) fn is_over(&self) -> bool {
        self.inner.stopped.get() && self.held().is_empty()
    }

    /// Whether the caller of the call that is under way wants to stop.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.inner.network.whims.is_interrupted(&self.inner.world)
    }

    /// When it will.
    pub(crate) fn interrupt_at(&self) -> Option<Duration> {
        self.inner.network.whims.interrupt_at(&self.inner.world)
    }
}
