//! Connections to a peer: kept, and lent to one call at a time.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::stall::{Patience, SLICE};
use crate::error::EngineError;
use crate::transport::context::Context;

/// Most connections kept without work.
const MOST_IDLE: usize = 16;

/// A connection that was not needed for so long is closed, but for one.
const SPARE: Duration = Duration::from_secs(30);

/// A connection that was in use so lately is not looked at: that the peer has hung up since then the call finds out, as
/// it does where that happens a moment later.
const JUST_NOW: Duration = Duration::from_micros(100);

/// A failed attempt to connect is not repeated before.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A connection that carries one call after another.
pub(crate) trait Connect: Sized {
    type Address;
    type Error: From<EngineError> + std::fmt::Display;
    fn open(context: &Context, address: &Self::Address, patience: &Patience<'_>) -> Result<Self, Self::Error>;
    /// The peer has not hung up since the last call.
    fn is_alive(&self) -> bool;
    /// It stands between two calls.
    fn is_reusable(&self) -> bool;
    fn peer(address: &Self::Address) -> &str;
    /// The connection is gone, which says nothing of what was asked for on it.
    fn is_lost(error: &Self::Error) -> bool;
}

pub(crate) struct Pool<C: Connect> {
    address: C::Address,
    most: usize,
    state: Mutex<State<C>>,
    returned: Condvar,
}

struct State<C> {
    /// Since when; the newest last.
    idle: Vec<(Instant, C)>,
    lent: usize,
    /// When the last attempt to connect failed, and why.
    failed: Option<(Instant, String)>,
}

impl<C: Connect> Pool<C> {
    pub fn new(most: usize, address: C::Address) -> Pool<C> {
        let state = Mutex::new(State { idle: Vec::new(), lent: 0, failed: None });
        Pool { address, most, state, returned: Condvar::new() }
    }

    /// Where they lead.
    pub fn address(&self) -> &C::Address {
        &self.address
    }

    /// Lends a connection. One that turned out dead at its first use is replaced once: the peer may have closed it as
    /// unused, which is no failure of this call.
    pub fn with<T>(
        &self,
        context: &Context,
        patience: &Patience<'_>,
        mut call: impl FnMut(&mut C) -> Result<T, C::Error>,
    ) -> Result<T, C::Error> {
        let (mut carrier, mut fresh) = self.check_out(context, patience)?;
        loop {
            let result = call(&mut carrier);
            let reusable = carrier.is_reusable();
            let lost = result.as_ref().is_err_and(C::is_lost) && !reusable;
            if !lost || fresh || patience.is_over() {
                self.check_in(reusable.then_some(carrier));
                return result;
            }
            drop(carrier);
            match C::open(context, &self.address, patience) {
                Ok(opened) => (carrier, fresh) = (opened, true),
                Err(_) => {
                    self.check_in(None);
                    return result;
                }
            }
        }
    }

    /// Opens one, so that the way is known to work.
    pub fn try_connect(&self, context: &Context, patience: &Patience<'_>) -> Result<(), C::Error> {
        let carrier = C::open(context, &self.address, patience)?;
        self.state.lock().idle.push((Instant::now(), carrier));
        Ok(())
    }

    /// Closes connections that the peer has ended, and those that have not been needed.
    pub fn close_idle(&self, now: Instant) {
        let gone: Vec<_> = {
            let mut state = self.state.lock();
            let newest = state.idle.len().saturating_sub(1);
            let mut at = 0;
            let is_gone = |(since, carrier): &mut (Instant, C)| {
                at += 1;
                !carrier.is_alive() || (at <= newest && now.saturating_duration_since(*since) > SPARE)
            };
            state.idle.extract_if(.., is_gone).collect()
        };
        drop(gone);
    }

    fn check_out(&self, context: &Context, patience: &Patience<'_>) -> Result<(C, bool), C::Error> {
        let mut state = self.state.lock();
        loop {
            while let Some((since, carrier)) = state.idle.pop() {
                if since.elapsed() < JUST_NOW || carrier.is_alive() {
                    state.lent += 1;
                    return Ok((carrier, false));
                }
            }
            if state.lent < self.most {
                break;
            }
            if (patience.interrupted)() {
                return Err(EngineError::Interrupted.into());
            }
            if patience.is_over() {
                let (what, waited) = ("waiting for a connection that is free", patience.began.elapsed());
                return Err(EngineError::Timeout { peer: C::peer(&self.address).to_owned(), what, waited }.into());
            }
            self.returned.wait_for(&mut state, SLICE);
        }
        if let Some((at, why)) = &state.failed
            && at.elapsed() < RETRY_AFTER
        {
            let source = std::io::Error::other(format!("{why} ({:?} ago)", at.elapsed()));
            let peer = C::peer(&self.address).to_owned();
            return Err(EngineError::Socket { peer, what: "not tried again so soon", source }.into());
        }
        state.lent += 1;
        drop(state);
        match C::open(context, &self.address, patience) {
            Ok(carrier) => Ok((carrier, true)),
            Err(error) => {
                // A caller that had no more patience says nothing of the peer.
                if !(patience.interrupted)() && !patience.is_over() {
                    self.state.lock().failed = Some((Instant::now(), error.to_string()));
                }
                self.check_in(None);
                Err(error)
            }
        }
    }

    fn check_in(&self, carrier: Option<C>) {
        let mut state = self.state.lock();
        state.lent -= 1;
        if let Some(carrier) = carrier
            && state.idle.len() < MOST_IDLE
        {
            state.idle.push((Instant::now(), carrier));
            state.failed = None;
        }
        self.returned.notify_one();
    }
}
