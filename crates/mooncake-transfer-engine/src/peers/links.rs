//! The links to all peers, whose idle connections are closed now and then.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::link::Link;

/// How often they are looked at, at most.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Links {
    list: Mutex<Vec<Weak<Link>>>,
    swept: Mutex<Option<Instant>>,
}

impl Links {
    /// Looks after a link from now on, as long as others hold it.
    pub(crate) fn keep(&self, link: Link) -> Arc<Link> {
        let link = Arc::new(link);
        let mut list = self.list.lock();
        list.retain(|other| other.strong_count() > 0);
        list.push(Arc::downgrade(&link));
        link
    }

    /// Closes connections that peers have ended, and those that no call has needed for a while; does nothing if it did
    /// so a moment ago.
    pub(crate) fn close_idle(&self, now: Instant) {
        {
            let mut swept = self.swept.lock();
            if swept.is_some_and(|at| now.duration_since(at) < SWEEP_INTERVAL) {
                return;
            }
            *swept = Some(now);
        }
        self.all().iter().for_each(|link| link.close_idle(now));
    }

    /// At the engine's end.
    pub(crate) fn close(&self) {
        self.all().iter().for_each(|link| link.close());
    }

    fn all(&self) -> Vec<Arc<Link>> {
        self.list.lock().iter().filter_map(Weak::upgrade).collect()
    }
}
