//! Peers that did not answer in time. Whoever turns to one is told so at once, and threads ask it until it answers
//! again.
//!
//! A call that ran into its deadline says little by itself: the peer may have frozen, or the link may be slow. So the
//! peer is asked whether it is there, by its handshake. Until that is known, those who turn to it wait, for a second at
//! most; then they fail at once, until it has answered. One that refuses has answered, too: it costs its callers no
//! time.

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

/// A peer that is there answers in this time.
const ANSWER: Duration = Duration::from_secs(1);

/// Between two questions to one peer.
const PAUSE: Duration = Duration::from_millis(250);

/// Most threads that ask, each one peer at a time.
const MOST_THREADS: usize = 8;

/// A peer that nobody has wanted for so long is not asked any more, before somebody does.
const WANTED: Duration = Duration::from_secs(60);

pub(crate) struct UnresponsivePeers {
    /// Looks the peers up that are asked.
    node: Arc<LocalNode>,
    /// Number of entries below, so that calls to others take no lock.
    count: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    peers: HashMap<String, Silent>,
    threads: usize,
    closed: bool,
}

struct Silent {
    since: Instant,
    /// Somebody turned to it then.
    wanted: Instant,
    /// When it was last asked in vain; nothing if it was not asked since it is wanted.
    asked: Option<Instant>,
    /// A thread asks it now.
    busy: bool,
}

impl UnresponsivePeers {
    /// None yet.
    pub fn new(node: Arc<LocalNode>) -> UnresponsivePeers {
        UnresponsivePeers { node, count: AtomicUsize::new(0), state: Mutex::default(), changed: Condvar::new() }
    }

    /// Carries a call to a peer out, unless the peer is known not to answer; learns from how it ends.
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
            Err(error) if is_silence(error) => self.add(name),
            Err(_) => {}
        }
        result
    }

    /// No peer is asked any more.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// An error if the peer is known not to answer.
    pub fn check(self: &Arc<Self>, name: &str, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let until = Instant::now() + ANSWER;
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let Some(silent) = state.peers.get_mut(name) else { return Ok(()) };
            if now.duration_since(silent.wanted) >= WANTED {
                // What was heard of it then is old.
                silent.asked = None;
            }
            silent.wanted = now;
            if silent.asked.is_some() || now >= until {
                let since = now.duration_since(silent.since);
                self.watch(&mut state);
                return Err(EngineError::Silent { peer: name.to_owned(), since });
            }
            self.watch(&mut state);
            // The caller's hook may wait for a lock of the caller's, whose holder waits for this one.
            MutexGuard::unlocked(&mut state, || deadline.check()).map_err(EngineError::waiting(name, "its answer"))?;
            self.changed.wait_for(&mut state, Deadline::SLICE);
        }
    }

    fn add(self: &Arc<Self>, name: &str) {
        let now = Instant::now();
        let mut state = self.state.lock();
        if !state.peers.contains_key(name) {
            let silent = Silent { since: now, wanted: now, asked: None, busy: false };
            state.peers.insert(name.to_owned(), silent);
            self.count.store(state.peers.len(), Ordering::Release);
        }
        self.watch(&mut state);
    }

    fn answered(&self, name: &str) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.state.lock();
        if let Some(silent) = state.peers.remove(name) {
            if silent.asked.is_some() {
                tracing::info!(peer = name, silent = ?silent.since.elapsed(), "the peer answers again");
            }
            self.count.store(state.peers.len(), Ordering::Release);
            self.changed.notify_all();
        }
    }

    /// Has the peers asked. Where no thread can be started, whoever turns to one finds out by himself.
    fn watch(self: &Arc<Self>, state: &mut State) {
        let wanted = state.peers.values().filter(|silent| silent.wanted.elapsed() < WANTED).count();
        while !state.closed && state.threads < wanted.min(MOST_THREADS) {
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
            if asks(&self.node, &name, &Deadline::after(ANSWER, &closed)) {
                self.answered(&name);
            }
            if let Some(silent) = self.state.lock().peers.get_mut(&name) {
                if silent.asked.is_none() {
                    tracing::info!(peer = name, "the peer does not answer; it is used again once it does");
                }
                (silent.busy, silent.asked) = (false, Some(Instant::now()));
            }
            self.changed.notify_all();
        }
    }

    /// The peer that is to be asked next, when it is time; none if none is wanted.
    fn next(&self) -> Option<String> {
        let mut state = self.state.lock();
        loop {
            let closed = state.closed;
            let idle = state.peers.iter_mut().filter(|(_, silent)| !silent.busy && silent.wanted.elapsed() < WANTED);
            let next = idle.min_by_key(|(_, silent)| silent.asked);
            let Some((name, silent)) = next.filter(|_| !closed) else {
                state.threads -= 1;
                return None;
            };
            let due = silent.asked.map_or(Duration::ZERO, |asked| PAUSE.saturating_sub(asked.elapsed()));
            if due.is_zero() {
                silent.busy = true;
                return Some(name.clone());
            }
            self.changed.wait_for(&mut state, due);
        }
    }
}

/// Whether the peer answers, whatever it says; and if it cannot be asked, because its address is not to be had: others
/// may reach it all the same.
fn asks(node: &LocalNode, name: &str, deadline: &Deadline<'_>) -> bool {
    let Ok((_, addresses)) = node.handshake_at(name, deadline) else { return true };
    let probe = Message::new(Kind::Probe, "{}".into());
    let longest = node.context.options.handshake_max;
    match crate::protocol::handshake::ask(name, &addresses, &probe, ANSWER, deadline, longest) {
        Err(EngineError::Interrupted) => false,
        Err(error) => !is_silence(&error),
        Ok(_) => true,
    }
}

/// Nothing was heard of the peer, as far as this error says.
fn is_silence(error: &EngineError) -> bool {
    match error {
        EngineError::Timeout { .. } => true,
        EngineError::Socket { source, .. } => {
            matches!(source.kind(), ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable)
        }
        _ => false,
    }
}
