//! Peers that did not answer in time: calls to them fail at once, and threads probe them until they answer again.
//!
//! A call that ran into its deadline says little by itself: the peer may have frozen, or the link may be slow. So a
//! thread probes the peer by a handshake.
//!
//! - Until the probe has ended, calls to the peer wait for it, for a second at most.
//! - If the peer does not answer, calls fail at once until it does.
//! - A peer that refuses has answered, too: it costs its callers no time.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mooncake_os::Deadline;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::EngineError;
use crate::local_node::LocalNode;
use crate::protocol::handshake::{Kind, Message};

/// A peer that lives answers a probe in this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Between two probes of one peer.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Most threads that probe, each one peer at a time.
const THREADS_MAX: usize = 8;

/// A peer that no call has wanted for so long is not probed any more, until one does.
const WANTED_TIME: Duration = Duration::from_secs(60);

pub(crate) struct UnresponsivePeers {
    /// Looks up the peers that are probed.
    node: Arc<LocalNode>,
    /// Number of peers in `state`: while it is 0, calls take no lock.
    count: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    peers: HashMap<String, UnresponsivePeer>,
    threads: usize,
    closed: bool,
}

struct UnresponsivePeer {
    since: Instant,
    /// When a call last wanted it.
    wanted: Instant,
    /// When it last failed to answer a probe; none if it was not probed since calls want it.
    asked: Option<Instant>,
    /// A thread probes it now.
    busy: bool,
}

impl UnresponsivePeers {
    /// None yet.
    pub fn new(node: Arc<LocalNode>) -> UnresponsivePeers {
        UnresponsivePeers { node, count: AtomicUsize::new(0), state: Mutex::default(), changed: Condvar::new() }
    }

    /// Makes a call to a peer, unless the peer is known not to answer. Learns from how the call ends.
    pub fn call<T>(
        self: &Arc<Self>,
        name: &str,
        deadline: &Deadline<'_>,
        call: impl FnOnce() -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.check(name, deadline)?;
        let result = call();
        match &result {
            Ok(_) => self.answered(name),
            Err(error) if is_no_answer(error) => self.add(name),
            Err(_) => {}
        }
        result
    }

    /// Probes no peer any more.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// An error if the peer is known not to answer.
    pub fn check(self: &Arc<Self>, name: &str, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let until = Instant::now() + ANSWER_TIMEOUT;
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let Some(peer) = state.peers.get_mut(name) else { return Ok(()) };
            if now.duration_since(peer.wanted) >= WANTED_TIME {
                // The last probe is too old to tell.
                peer.asked = None;
            }
            peer.wanted = now;
            if peer.asked.is_some() || now >= until {
                let since = now.duration_since(peer.since);
                self.watch(&mut state);
                return Err(EngineError::Unresponsive { peer: name.to_owned(), since });
            }
            self.watch(&mut state);
            // Without the lock: see `Deadline`.
            MutexGuard::unlocked(&mut state, || deadline.check()).map_err(EngineError::waiting(name, "its answer"))?;
            self.changed.wait_for(&mut state, Deadline::SLICE);
        }
    }

    fn add(self: &Arc<Self>, name: &str) {
        let now = Instant::now();
        let mut state = self.state.lock();
        if !state.peers.contains_key(name) {
            let entry = UnresponsivePeer { since: now, wanted: now, asked: None, busy: false };
            state.peers.insert(name.to_owned(), entry);
            self.count.store(state.peers.len(), Ordering::Release);
        }
        self.watch(&mut state);
    }

    fn answered(&self, name: &str) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.state.lock();
        if let Some(peer) = state.peers.remove(name) {
            if peer.asked.is_some() {
                tracing::info!(peer = name, silent = ?peer.since.elapsed(), "the peer answers again");
            }
            self.count.store(state.peers.len(), Ordering::Release);
            self.changed.notify_all();
        }
    }

    /// Has threads probe the peers. If no thread can be started, the peers are forgotten, and calls find out by
    /// themselves.
    fn watch(self: &Arc<Self>, state: &mut State) {
        let wanted = state.peers.values().filter(|peer| peer.wanted.elapsed() < WANTED_TIME).count();
        while !state.closed && state.threads < wanted.min(THREADS_MAX) {
            let peers = self.clone();
            let builder = std::thread::Builder::new().name("mooncake-probe".into());
            if mooncake_os::thread::start(builder, move || peers.run()).is_err() {
                if state.threads == 0 {
                    state.peers.clear();
                    self.count.store(0, Ordering::Release);
                }
                return;
            }
            state.threads += 1;
        }
    }

    fn run(&self) {
        while let Some(name) = self.next() {
            let closed = || self.state.lock().closed;
            if is_answering(&self.node, &name, &Deadline::after(ANSWER_TIMEOUT, &closed)) {
                // A call that finds it unresponsive from here on has found that out behind this answer.
                self.answered(&name);
                continue;
            }
            let mut state = self.state.lock();
            let is_over = state.closed;
            if let Some(peer) = state.peers.get_mut(&name) {
                if peer.asked.is_none() && !is_over {
                    tracing::info!(peer = name, "the peer does not answer; it is used again once it does");
                }
                (peer.busy, peer.asked) = (false, Some(Instant::now()));
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits for the time of the next probe; gives the peer. None if no peer is to be probed: the thread ends.
    fn next(&self) -> Option<String> {
        let mut state = self.state.lock();
        loop {
            let closed = state.closed;
            let idle = state.peers.iter_mut().filter(|(_, peer)| !peer.busy && peer.wanted.elapsed() < WANTED_TIME);
            let next = idle.min_by_key(|(_, peer)| peer.asked);
            let Some((name, peer)) = next.filter(|_| !closed) else {
                state.threads -= 1;
                return None;
            };
            let due = peer.asked.map_or(Duration::ZERO, |asked| RETRY_PAUSE.saturating_sub(asked.elapsed()));
            if due.is_zero() {
                peer.busy = true;
                return Some(name.clone());
            }
            self.changed.wait_for(&mut state, due);
        }
    }
}

/// Whether the peer answers a probe, whatever it says. True, too, if its address cannot be looked up, so that it cannot
/// be probed: calls may reach it all the same.
fn is_answering(node: &LocalNode, name: &str, deadline: &Deadline<'_>) -> bool {
    let Ok((_, addresses)) = node.handshake_at(name, deadline) else { return true };
    let probe = Message::new(Kind::Probe, "{}".into());
    let longest = node.context.options.handshake_max;
    match crate::protocol::handshake::ask(name, &addresses, &probe, ANSWER_TIMEOUT, deadline, longest) {
        Err(EngineError::Interrupted) => false,
        Err(error) => !is_no_answer(&error),
        Ok(_) => true,
    }
}

/// Whether this error says that nothing was heard of the peer.
fn is_no_answer(error: &EngineError) -> bool {
    match error {
        EngineError::Timeout { .. } => true,
        EngineError::Socket { source, .. } => {
            matches!(source.kind(), ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable)
        }
        _ => false,
    }
}
