//! Memory of peers on this host that this process has mapped.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use mooncake_memory::{PeerMemory, PeerProcess};
use parking_lot::Mutex;

/// All that an engine has mapped of its peers' memory.
#[derive(Default)]
pub(crate) struct MappedPeers {
    list: Mutex<Vec<Weak<MappedPeer>>>,
}

/// What is mapped of one incarnation of a peer, for all connections to it.
#[derive(Default)]
pub(crate) struct MappedPeer {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    process: Option<Arc<PeerProcess>>,
    blocks: BTreeMap<u64, Block>,
    /// What the peer's revision page said when it was looked at last.
    revision: u64,
}

struct Block {
    memory: Arc<PeerMemory>,
    /// What the peer's revision page said when a call last needed the block.
    needed: u64,
}

impl MappedPeers {
    /// What will be mapped of a peer whose path is looked for.
    pub(crate) fn add(&self) -> Arc<MappedPeer> {
        let peer = Arc::default();
        let mut list = self.list.lock();
        list.retain(|other| other.strong_count() > 0);
        list.push(Arc::downgrade(&peer));
        peer
    }

    /// Unmaps memory of processes that have ended: as long as it is mapped, the kernel keeps its pages.
    pub(crate) fn forget_ended(&self) {
        let all: Vec<_> = self.list.lock().iter().filter_map(Weak::upgrade).collect();
        for peer in all {
            if peer.state.lock().process.as_ref().is_some_and(|process| process.has_ended()) {
                peer.forget();
            }
        }
    }
}

impl MappedPeer {
    /// Unmaps all of it: the engine has ended, though its process may go on.
    pub fn forget(&self) {
        let mut state = self.state.lock();
        state.process = None;
        state.blocks.clear();
    }

    /// A block, while the peer's revision page says `revision`. A block that no call needed between two changes of the
    /// revision is unmapped: the peer may have freed it.
    pub fn get(&self, id: u64, revision: u64) -> Option<Arc<PeerMemory>> {
        let mut state = self.state.lock();
        if state.revision < revision {
            let before = state.revision;
            state.blocks.retain(|_, block| block.needed >= before);
            state.revision = revision;
        }
        let block = state.blocks.get_mut(&id)?;
        block.needed = block.needed.max(revision);
        Some(block.memory.clone())
    }

    /// Keeps a block of that process. Another connection may have mapped it at the same time.
    pub fn keep(&self, id: u64, memory: PeerMemory, process: &Arc<PeerProcess>) -> Arc<PeerMemory> {
        let mut state = self.state.lock();
        state.process.get_or_insert_with(|| process.clone());
        let needed = state.revision;
        state.blocks.entry(id).or_insert_with(|| Block { memory: Arc::new(memory), needed }).memory.clone()
    }

    /// Number of blocks.
    pub fn count(&self) -> usize {
        self.state.lock().blocks.len()
    }
}
