//! The peers of an engine by their names and ids, met or not.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::error::EngineError;
use crate::peers::peer::Peer;
use crate::request::PeerId;

/// A peer that has an id.
#[derive(Clone)]
pub(crate) struct PeerEntry {
    pub name: Arc<str>,
    /// None while no call has met it.
    pub peer: Option<Arc<Peer>>,
}

#[derive(Default)]
pub(crate) struct PeerRegistry {
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    /// By their ids, which begin with 1.
    list: Vec<PeerEntry>,
    by_name: HashMap<Arc<str>, PeerId>,
}

impl PeerRegistry {
    /// The id of a name that has one; `met`: only of a peer that was met.
    pub fn id_of(&self, name: &str, met: bool) -> Option<PeerId> {
        let state = self.state.read();
        let id = *state.by_name.get(name)?;
        (!met || state.list[id.0 as usize - 1].peer.is_some()).then_some(id)
    }

    /// Gives a name an id, if it has none, and keeps the peer: of two that met it at once the first is kept.
    pub fn keep(&self, name: &str, peer: Option<Arc<Peer>>) -> PeerId {
        let mut state = self.state.write();
        let id = match state.by_name.get(name) {
            Some(id) => *id,
            None => {
                let (name, id) = (Arc::<str>::from(name), PeerId(state.list.len() as u32 + 1));
                state.by_name.insert(name.clone(), id);
                state.list.push(PeerEntry { name, peer: None });
                id
            }
        };
        let kept = &mut state.list[id.0 as usize - 1].peer;
        if kept.is_none() {
            *kept = peer;
        }
        id
    }

    /// The peer that was kept of a name: of two that met it at once the first one's, whose link knows what it began.
    pub fn keep_met(&self, name: &str, peer: Arc<Peer>) -> Arc<Peer> {
        let id = self.keep(name, Some(peer.clone()));
        let kept = self.state.read().list[id.0 as usize - 1].peer.clone();
        kept.unwrap_or(peer)
    }

    /// None: the id is this engine's own.
    pub fn get(&self, id: PeerId) -> Result<Option<PeerEntry>, EngineError> {
        if id == PeerId::SELF {
            return Ok(None);
        }
        let known = self.state.read().list.get(id.0 as usize - 1).cloned();
        known.map(Some).ok_or_else(|| EngineError::InvalidArgument(format!("{} is no peer of this engine", id.0)))
    }

    /// All that were met.
    pub fn met(&self) -> Vec<Arc<Peer>> {
        self.state.read().list.iter().filter_map(|known| known.peer.clone()).collect()
    }
}
