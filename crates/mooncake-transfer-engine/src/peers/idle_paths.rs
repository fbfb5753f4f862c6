//! The routes to all peers, whose idle connections are closed now and then.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::route::Route;

/// How often they are looked at, at most.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct IdlePaths {
    list: Mutex<Vec<Weak<Route>>>,
    swept: Mutex<Option<Instant>>,
}

impl IdlePaths {
    /// Looks after a route from now on, as long as others hold it.
    pub(crate) fn keep(&self, route: Route) -> Arc<Route> {
        let route = Arc::new(route);
        let mut list = self.list.lock();
        list.retain(|other| other.strong_count() > 0);
        list.push(Arc::downgrade(&route));
        route
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
        let all: Vec<_> = self.list.lock().iter().filter_map(Weak::upgrade).collect();
        for route in all {
            route.close_idle(now);
        }
    }
}
