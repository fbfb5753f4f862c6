//! An engine as initiator: it gives peers ids, meets them and carries requests out. Its callers' threads and its own
//! share one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_memory::Bounce;
use mooncake_os::{Deadline, forked};

use crate::error::EngineError;
use crate::local_node::LocalNode;
use crate::notify::Notify;
use crate::peers::calls::Calls;
use crate::peers::links::Links;
use crate::peers::peer::Peer;
use crate::peers::registry::{PeerEntry, PeerRegistry};
use crate::peers::unresponsive::UnresponsivePeers;
use crate::protocol::handshake::{self, Kind, Message, NotifyBody};
use crate::request::{Opcode, PeerId, Request, total};
use crate::transport::stall::StallTimer;

/// Longest that [`Initiator::open_soon`] waits for a peer that has not been met.
const OPEN_SOON_TIMEOUT: Duration = Duration::from_millis(100);

/// Gives peers ids, meets them, and carries requests out.
pub(crate) struct Initiator {
    pub node: Arc<LocalNode>,
    pub unresponsive: Arc<UnresponsivePeers>,
    pub peers: PeerRegistry,
    /// The links to them.
    pub links: Arc<Links>,
    pub calls: Calls,
}

impl Initiator {
    pub fn check(&self) -> Result<(), EngineError> {
        if forked() {
            return Err(EngineError::Forked);
        }
        if self.calls.is_closed() { Err(EngineError::Closed) } else { Ok(()) }
    }

    /// Until when a transfer of so many bytes may go on.
    pub fn deadline(&self, bytes: u64) -> Deadline<'static> {
        Deadline::after(self.node.context.options.transfer_timeout + Duration::from_nanos(bytes), &|| false)
    }

    pub fn open(&self, name: &str, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<PeerId, EngineError> {
        let deadline = Deadline { interrupted, ..self.deadline(0) };
        self.find(name, false, |name| Ok(self.peers.keep(name, Some(self.meet(name, &deadline)?))))
    }

    pub fn open_soon(&self, name: &str, interrupted: &(dyn Fn() -> bool + Sync)) -> Result<PeerId, EngineError> {
        let deadline = Deadline::after(OPEN_SOON_TIMEOUT, interrupted);
        self.find(name, true, |name| {
            // Not by `meet`, which would take the end of so short a wait for a sign that the peer is unresponsive.
            let met = self.unresponsive.check(name, &deadline).and_then(|()| self.meet_once(name, &deadline));
            match met {
                Ok(peer) => Ok(self.peers.keep(name, Some(peer))),
                Err(error @ (EngineError::Interrupted | EngineError::Unresponsive { .. })) => Err(error),
                Err(_) if deadline.has_passed() => Ok(self.peers.keep(name, None)),
                Err(error) => Err(error),
            }
        })
    }

    /// The id of a peer that was met, or, with `soon`, that has an id; else what `open` gives.
    fn find(
        &self,
        name: &str,
        soon: bool,
        open: impl FnOnce(&str) -> Result<PeerId, EngineError>,
    ) -> Result<PeerId, EngineError> {
        self.check()?;
        let name = name.trim_start_matches('/');
        if name.is_empty() {
            return Err(EngineError::InvalidArgument("a peer has a name".into()));
        }
        if self.node.is_called(name) {
            return Ok(PeerId::SELF);
        }
        match self.peers.id_of(name, !soon) {
            Some(id) => Ok(id),
            // Without a lock: other calls go on.
            None => open(name),
        }
    }

    /// Asks a peer for its segment document, unless it is known not to answer.
    pub fn meet(&self, name: &str, deadline: &Deadline<'_>) -> Result<Arc<Peer>, EngineError> {
        self.unresponsive.call(name, deadline, || self.meet_once(name, deadline))
    }

    /// The same, without a look or a word to the list of those that do not answer.
    fn meet_once(&self, name: &str, deadline: &Deadline<'_>) -> Result<Arc<Peer>, EngineError> {
        Peer::meet(&self.node, &self.links, name, deadline).map(Arc::new)
    }

    /// All that were met.
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.met()
    }

    pub fn peer_name(&self, id: PeerId) -> String {
        match self.peers.get(id) {
            Ok(Some(known)) => known.name.to_string(),
            _ => self.node.name.clone(),
        }
    }

    /// Carries requests out, in this thread: all, or an error. The engine's end interrupts it, and waits for it.
    pub fn transfer(&self, peer: PeerId, requests: &[Request], deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let _call = self.calls.enter()?;
        let interrupted = || self.calls.is_closed() || deadline.is_interrupted();
        match self.transfer_once(peer, requests, &Deadline { interrupted: &interrupted, ..*deadline }) {
            Err(EngineError::Interrupted) if self.calls.is_closed() => Err(EngineError::Closed),
            result => result,
        }
    }

    fn transfer_once(&self, peer: PeerId, requests: &[Request], deadline: &Deadline<'_>) -> Result<(), EngineError> {
        total(requests)?;
        let Some(PeerEntry { name, peer: met }) = self.peers.get(peer)? else {
            return requests.iter().try_for_each(|request| self.copy_here(request, deadline));
        };
        let peer = match met {
            Some(peer) => peer,
            None => {
                let met = self.meet(&name, deadline)?;
                self.peers.keep_met(&name, met)
            }
        };
        self.unresponsive.call(&name, deadline, || peer.transfer(&self.node, requests, deadline))
    }

    /// A request to the own segment.
    fn copy_here(&self, request: &Request, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        const COPY_STEP_BYTES: usize = 4 << 20;
        let (addr, len) = (request.remote, request.local.len());
        if len == 0 {
            return Ok(());
        }
        let outside = || EngineError::NotRegistered { owner: self.node.name.clone(), addr, len: len as u64 };
        let buffer = self.node.context.buffers.find(addr, len as u64).ok_or_else(outside)?;
        let (timer, mut bounce) = (StallTimer::new(&self.node.name, deadline, Duration::MAX), Bounce::new());
        for at in (0..len).step_by(COPY_STEP_BYTES) {
            timer.check("copying within the process")?;
            let step = COPY_STEP_BYTES.min(len - at);
            let _in_use = buffer.enter().ok_or_else(outside)?;
            let (here, there) = (request.local.part(at, step), buffer.part(addr + at as u64, step as u64));
            let (from, into) = match request.opcode {
                Opcode::Read => (there, here),
                Opcode::Write => (here, there),
            };
            self.node.context.copy(from, into, &mut bounce)?;
        }
        Ok(())
    }

    pub fn send_notify(&self, peer: PeerId, notify: &Notify, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let Some(PeerEntry { name, .. }) = self.peers.get(peer)? else {
            self.node.inbox.push(notify.clone());
            return Ok(());
        };
        let body = NotifyBody { name: notify.name.clone(), notify_msg: notify.message.clone() };
        let json = serde_json::to_string(&body).expect("strings are JSON");
        let message = Message::new(Kind::Notify, json);
        let (len, most) = (message.len(), self.node.context.options.handshake_max);
        if len > most {
            let why = format!("a message of {len} bytes; handshakes have {most} at most (MC_HANDSHAKE_MAX_LENGTH)");
            return Err(EngineError::InvalidArgument(why));
        }
        self.say(&name, &message, deadline)
    }

    /// Sends the notification of a batch that is done, until the batch's deadline, a connection's, or the engine's end.
    pub fn tell_of_batch(&self, to: PeerId, notify: &Notify, until: Instant) -> Result<(), EngineError> {
        let interrupted = || self.calls.is_closed();
        let deadline = Deadline::after(self.node.context.options.connect_timeout, &interrupted);
        let until = until.min(deadline.until);
        self.send_notify(to, notify, &Deadline { until, ..deadline })
    }

    pub fn say(&self, name: &str, message: &Message, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let name = name.trim_start_matches('/');
        self.unresponsive.call(name, deadline, || {
            let (_, addresses) = self.node.handshake_at(name, deadline)?;
            let (connect, longest) =
                (self.node.context.options.connect_timeout, self.node.context.options.handshake_max);
            handshake::ask(name, &addresses, message, connect, deadline, longest).map(drop)
        })
    }
}
