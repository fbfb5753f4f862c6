//! Connections to one peer: kept between calls, and used by one call at a time.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use mooncake_os::{Deadline, WaitError};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// A connection that came back so lately is checked out without a look: if its peer has hung up since, the call finds
/// out, as it does where that happens a moment later.
const TRUSTED_AFTER_USE: Duration = Duration::from_micros(100);

/// How to connect to the peer, and what the errors of its calls are.
pub trait Connect {
    /// What carries one call after another.
    type Connection: Connection;
    /// Of an attempt to connect, and of calls.
    type Error: std::fmt::Display;

    /// Connects.
    fn open(&self, deadline: &Deadline<'_>) -> Result<Self::Connection, Self::Error>;

    /// The connection is lost, which says nothing of what was asked for on it.
    fn is_lost(&self, error: &Self::Error) -> bool;

    /// All connections stayed in use.
    fn none_free(&self, error: WaitError) -> Self::Error;

    /// Connecting failed a moment ago, for this reason, and is not tried again yet.
    fn too_soon(&self, reason: &str, ago: Duration) -> Self::Error;
}

/// A connection that calls use one after the other.
pub trait Connection {
    /// The peer has not hung up since the last call.
    fn is_alive(&self) -> bool;

    /// It stands between two calls.
    fn is_reusable(&self) -> bool;
}

/// How many connections a pool has, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct PoolLimits {
    /// Used by calls at a time.
    pub in_use_max: usize,
    /// Kept without work.
    pub idle_max: usize,
    /// One that no call has needed for so long is closed, but for the newest.
    pub idle_time_max: Duration,
    /// An attempt to connect that failed is not repeated before.
    pub retry_after: Duration,
}

/// The connections to one peer.
#[derive(Debug)]
pub struct Pool<C> {
    limits: PoolLimits,
    state: Mutex<State<C>>,
    returned: Condvar,
}

#[derive(Debug)]
struct State<C> {
    /// Since when; the newest last.
    idle: Vec<(Instant, C)>,
    in_use: usize,
    /// When the last attempt to connect failed, and why.
    failed: Option<(Instant, String)>,
}

impl<C: Connection> Pool<C> {
    /// None yet.
    pub fn new(limits: PoolLimits) -> Pool<C> {
        let state = Mutex::new(State { idle: Vec::new(), in_use: 0, failed: None });
        Pool { limits, state, returned: Condvar::new() }
    }

    /// Makes a call on a connection, which is checked out for it. One that turns out dead at its first use is replaced
    /// once: the peer may have closed it as unused, which is no failure of this call.
    pub fn with<T, B: Connect<Connection = C>>(
        &self,
        by: &B,
        deadline: &Deadline<'_>,
        mut call: impl FnMut(&mut C) -> Result<T, B::Error>,
    ) -> Result<T, B::Error> {
        let (mut connection, mut is_fresh) = self.check_out(by, deadline)?;
        loop {
            let result = call(&mut connection);
            let is_reusable = connection.is_reusable();
            let is_lost = result.as_ref().is_err_and(|error| by.is_lost(error)) && !is_reusable;
            if !is_lost || is_fresh || deadline.has_passed() {
                self.check_in(is_reusable.then_some(connection));
                return result;
            }
            drop(connection);
            match by.open(deadline) {
                Ok(opened) => (connection, is_fresh) = (opened, true),
                Err(_) => {
                    self.check_in(None);
                    return result;
                }
            }
        }
    }

    /// Checks a connection out for a caller that uses several of different pools at a time.
    pub fn take<B: Connect<Connection = C>>(&self, by: &B, deadline: &Deadline<'_>) -> Result<Taken<'_, C>, B::Error> {
        let (connection, is_fresh) = self.check_out(by, deadline)?;
        Ok(Taken { pool: self, connection: Some(connection), is_fresh })
    }

    /// Opens one, so that the peer is known to be reached.
    pub fn try_connect<B: Connect<Connection = C>>(&self, by: &B, deadline: &Deadline<'_>) -> Result<(), B::Error> {
        let connection = by.open(deadline)?;
        self.state.lock().idle.push((Instant::now(), connection));
        Ok(())
    }

    /// Whether there is no connection, nor an attempt at one.
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.in_use == 0 && state.idle.is_empty()
    }

    /// Closes connections that the peer has ended, and those that no call has needed for long.
    pub fn close_idle(&self, now: Instant) {
        let closed: Vec<_> = {
            let mut state = self.state.lock();
            let newest = state.idle.len().saturating_sub(1);
            let mut at = 0;
            let is_over = |(since, connection): &mut (Instant, C)| {
                at += 1;
                let is_old = now.saturating_duration_since(*since) > self.limits.idle_time_max;
                !connection.is_alive() || (at <= newest && is_old)
            };
            state.idle.extract_if(.., is_over).collect()
        };
        // Without the lock: a close may wait for its peer.
        drop(closed);
    }

    /// Closes all that no call uses.
    pub fn close_all_idle(&self) {
        let closed = std::mem::take(&mut self.state.lock().idle);
        // Without the lock: a close may wait for its peer.
        drop(closed);
    }

    fn check_out<B: Connect<Connection = C>>(&self, by: &B, deadline: &Deadline<'_>) -> Result<(C, bool), B::Error> {
        let mut state = self.state.lock();
        loop {
            while let Some((since, connection)) = state.idle.pop() {
                if since.elapsed() < TRUSTED_AFTER_USE || connection.is_alive() {
                    state.in_use += 1;
                    return Ok((connection, false));
                }
            }
            if state.in_use < self.limits.in_use_max {
                break;
            }
            MutexGuard::unlocked(&mut state, || deadline.check()).map_err(|error| by.none_free(error))?;
            // One may have come back while the caller's hook was asked.
            if state.idle.is_empty() && state.in_use >= self.limits.in_use_max {
                self.returned.wait_for(&mut state, Deadline::SLICE);
            }
        }
        if let Some((at, reason)) = &state.failed
            && at.elapsed() < self.limits.retry_after
        {
            return Err(by.too_soon(reason, at.elapsed()));
        }
        state.in_use += 1;
        drop(state);
        match by.open(deadline) {
            Ok(connection) => Ok((connection, true)),
            Err(error) => {
                // A caller that waits no longer says nothing of the peer.
                if deadline.check().is_ok() {
                    self.state.lock().failed = Some((Instant::now(), error.to_string()));
                }
                self.check_in(None);
                Err(error)
            }
        }
    }

    fn check_in(&self, connection: Option<C>) {
        let mut state = self.state.lock();
        state.in_use -= 1;
        if let Some(connection) = connection
            && state.idle.len() < self.limits.idle_max
        {
            state.idle.push((Instant::now(), connection));
            state.failed = None;
        }
        self.returned.notify_one();
    }
}

/// A connection that comes back when this is dropped.
#[derive(Debug)]
pub struct Taken<'a, C: Connection> {
    pool: &'a Pool<C>,
    connection: Option<C>,
    /// It was made for this caller.
    pub is_fresh: bool,
}

impl<C: Connection> Deref for Taken<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.connection.as_ref().expect("there until it is dropped")
    }
}

impl<C: Connection> DerefMut for Taken<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.connection.as_mut().expect("there until it is dropped")
    }
}

impl<C: Connection> Drop for Taken<'_, C> {
    fn drop(&mut self) {
        self.pool.check_in(self.connection.take().filter(C::is_reusable));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const LIMITS: PoolLimits =
        PoolLimits { in_use_max: 1, idle_max: 2, idle_time_max: Duration::from_secs(30), retry_after: Duration::MAX };

    /// More than any of these tests needs.
    const OPENED_MAX: usize = 10;

    fn patient() -> Deadline<'static> {
        Deadline::after(Duration::from_secs(600), &|| false)
    }

    /// Connects to nothing; its peer decides how that goes.
    #[derive(Default)]
    struct Peer {
        refuses: bool,
        opened: Mutex<Vec<Arc<Mutex<Fate>>>>,
    }

    /// A connection and its number, and what its peer has done with it.
    struct Numbered(usize, Arc<Mutex<Fate>>);

    #[derive(Default)]
    struct Fate {
        hung_up: bool,
        broken: bool,
    }

    impl Connect for Peer {
        type Connection = Numbered;
        type Error = String;

        fn open(&self, _: &Deadline<'_>) -> Result<Numbered, String> {
            if self.refuses {
                return Err("refused".into());
            }
            let (fate, mut opened) = (Arc::default(), self.opened.lock());
            assert!(opened.len() < OPENED_MAX, "it connects without end");
            opened.push(Arc::clone(&fate));
            Ok(Numbered(opened.len(), fate))
        }

        fn is_lost(&self, error: &String) -> bool {
            error == "lost"
        }

        fn none_free(&self, error: WaitError) -> String {
            error.to_string()
        }

        fn too_soon(&self, reason: &str, _: Duration) -> String {
            format!("too soon after: {reason}")
        }
    }

    impl Connection for Numbered {
        fn is_alive(&self) -> bool {
            !self.1.lock().hung_up
        }

        fn is_reusable(&self) -> bool {
            !self.1.lock().broken
        }
    }

    /// The number of the connection that a call gets; its `outcome` breaks it if it is an error.
    fn call(
        pool: &Pool<Numbered>,
        peer: &Peer,
        outcome: impl Fn(usize) -> Result<(), &'static str>,
    ) -> Result<usize, String> {
        pool.with(peer, &patient(), |connection| {
            let outcome = outcome(connection.0);
            connection.1.lock().broken = outcome.is_err();
            outcome.map(|()| connection.0).map_err(str::to_owned)
        })
    }

    #[test]
    fn a_connection_is_kept_for_the_next_call_until_its_peer_hangs_up_or_a_call_breaks_it() {
        let (pool, peer) = (Pool::new(LIMITS), Peer::default());
        assert_eq!(call(&pool, &peer, |_| Ok(())), Ok(1));
        assert_eq!(call(&pool, &peer, |_| Ok(())), Ok(1));
        peer.opened.lock()[0].lock().hung_up = true;
        std::thread::sleep(TRUSTED_AFTER_USE);
        assert_eq!(call(&pool, &peer, |_| Ok(())), Ok(2));
        assert_eq!(call(&pool, &peer, |_| Err("no")), Err("no".into()));
        assert_eq!(call(&pool, &peer, |_| Ok(())), Ok(3));
    }

    #[test]
    fn one_that_was_taken_comes_back_unless_it_broke() {
        let (pool, peer) = (Pool::new(LIMITS), Peer::default());
        drop(pool.take(&peer, &patient()).unwrap());
        let second = pool.take(&peer, &patient()).unwrap();
        assert_eq!(second.0, 1);
        second.1.lock().broken = true;
        drop(second);
        assert_eq!(call(&pool, &peer, |_| Ok(())), Ok(2));
    }

    #[test]
    fn one_that_is_lost_at_its_first_use_is_replaced_once() {
        let (pool, peer) = (Pool::new(LIMITS), Peer::default());
        assert_eq!(call(&pool, &peer, |_| Ok(())), Ok(1));
        assert_eq!(call(&pool, &peer, |number| if number == 1 { Err("lost") } else { Ok(()) }), Ok(2));
        assert_eq!(call(&pool, &peer, |_| Err("lost")), Err("lost".into()));
        assert_eq!(peer.opened.lock().len(), 3, "one for the one that was lost, and no more");
    }

    #[test]
    fn a_peer_that_refused_is_not_asked_again_so_soon_and_a_caller_that_gave_up_says_nothing_of_it() {
        let mut peer = Peer { refuses: true, ..Peer::default() };
        let pool = Pool::new(LIMITS);
        let impatient = Deadline::after(Duration::from_secs(600), &|| true);
        assert_eq!(pool.with(&peer, &impatient, |_| Ok(())), Err("refused".to_owned()));
        assert_eq!(call(&pool, &peer, |_| Ok(())), Err("refused".into()));
        assert_eq!(call(&pool, &peer, |_| Ok(())), Err("too soon after: refused".into()));
        peer.refuses = false;
        assert_eq!(pool.try_connect(&peer, &patient()), Ok(()));
        assert_eq!(call(&pool, &peer, |_| Ok(())), Ok(1), "what is there is used");
    }

    #[test]
    fn a_hook_may_return_the_connection_that_its_call_waits_for() {
        let (pool, peer) = (Pool::new(LIMITS), Peer::default());
        let (connection, _) = pool.check_out(&peer, &patient()).unwrap();
        let gave_up = Deadline::after(Duration::from_secs(600), &|| true);
        assert_eq!(pool.check_out(&peer, &gave_up).map(drop), Err("interrupted".into()));
        let held = Mutex::new(Some(connection));
        let hook = || {
            if let Some(connection) = held.lock().take() {
                pool.check_in(Some(connection));
            }
            false
        };
        let (connection, is_fresh) = pool.check_out(&peer, &Deadline::after(Duration::from_secs(600), &hook)).unwrap();
        assert_eq!((connection.0, is_fresh), (1, false));
        pool.check_in(Some(connection));
        assert_eq!(call(&pool, &peer, |_| Ok(())), Ok(1));
    }

    #[test]
    fn of_those_that_nothing_needs_the_newest_stays_and_of_those_that_ended_none() {
        let (pool, peer) = (Pool::new(LIMITS), Peer::default());
        for _ in 0..3 {
            pool.try_connect(&peer, &patient()).unwrap();
        }
        pool.close_idle(Instant::now());
        assert_eq!(pool.state.lock().idle.len(), 3);
        pool.close_idle(Instant::now() + LIMITS.idle_time_max + Duration::from_secs(1));
        assert_eq!(pool.state.lock().idle.iter().map(|(_, connection)| connection.0).collect::<Vec<_>>(), [3]);
        peer.opened.lock()[2].lock().hung_up = true;
        pool.close_idle(Instant::now());
        assert!(pool.state.lock().idle.is_empty());
    }
}
