//! The state of this store's memory, kept current, and what an heir shows to its master.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use mooncake_ids::SegmentUuid;
use mooncake_memory::{SealedFile, SegmentMemory};
use mooncake_os::OwnFile;
use mooncake_segment::machine::Tenure;
use mooncake_segment::{Epoch, SegmentServer};
use mooncake_wire::message::{Claim, Claimed, Endpoint, Keep};
use parking_lot::Mutex;

use super::holder::{KeepOptions, MemoryHolder};
use super::state::{KeptSegment, KeptState};
use crate::machine::inheritance::Inheritance;

/// What the state's descriptor is called.
pub(super) const STATE: &str = "mooncake-state";

/// What a segment's descriptors are called.
pub(super) fn names(uuid: SegmentUuid) -> [String; 2] {
    [format!("mooncake-data-{uuid}"), format!("mooncake-control-{uuid}")]
}

/// Memory of this store that outlives its process.
pub(crate) struct KeptMemory {
    options: KeepOptions,
    file: SealedFile,
    /// Held until this process ends: it proves that to the next one.
    _lock: OwnFile,
    state: Mutex<Written>,
    /// What numbers the claims of this owner; none where it made the memory.
    claims: Mutex<Claims>,
    server: OnceLock<Weak<SegmentServer>>,
    held: Mutex<Held>,
}

/// What the holder was given.
#[derive(Default)]
struct Held {
    state: bool,
    segments: BTreeSet<SegmentUuid>,
    /// It was said that it takes nothing.
    is_said: bool,
}

struct Written {
    state: KeptState,
    sequence: u64,
}

struct Claims {
    heir: Option<Inheritance>,
    /// Of the claim by which the session has the memory; 0 where it made it.
    accepted: u64,
    /// The first owner's, which has no tenure before it to be above.
    made: u32,
    /// Segments of the former session that could not be taken over.
    lost: Vec<SegmentUuid>,
}

/// A claim, and what tells that it was the one that was taken.
pub(crate) struct Reclaim {
    pub claim: Claim,
    turn: u64,
}

impl KeptMemory {
    /// Of a state that this process has locked, and has as it is written.
    pub(super) fn new(
        options: &KeepOptions,
        (file, lock): (SealedFile, OwnFile),
        (state, sequence): (KeptState, u64),
        heir: Option<Inheritance>,
        lost: Vec<SegmentUuid>,
    ) -> Arc<KeptMemory> {
        Arc::new(KeptMemory {
            options: options.clone(),
            file,
            _lock: lock,
            state: Mutex::new(Written { state, sequence }),
            claims: Mutex::new(Claims { heir, accepted: 0, made: 0, lost }),
            server: OnceLock::new(),
            held: Mutex::default(),
        })
    }

    pub fn holder(&self) -> &dyn MemoryHolder {
        &*self.options.holder
    }

    /// What serves the memory knows the ids of epochs.
    pub fn served_by(&self, server: &Arc<SegmentServer>) {
        let _ = self.server.set(Arc::downgrade(server));
    }

    /// How manieth owner this is.
    pub fn tenure(&self) -> u32 {
        self.state.lock().state.tenure
    }

    /// The owner's name, "host:port"; empty before there was one.
    pub fn name(&self) -> String {
        self.state.lock().state.name.clone()
    }

    /// The owner has this name from now on.
    pub fn is_named(&self, name: &str) -> io::Result<()> {
        self.change(|state| {
            let is_other = state.name != name;
            state.name = name.to_owned();
            is_other
        })
    }

    // ---------------------------------------------------------------- segments

    /// The segments, each with its access key.
    pub fn segments(&self) -> Vec<(SegmentUuid, u64)> {
        self.state.lock().state.segments.iter().map(|segment| (segment.uuid, segment.access_key)).collect()
    }

    /// Fresh memory, of which its owner says nothing before this: `taken` is no later than the epoch in which its
    /// master mounts it.
    pub fn note_fresh(&self, memory: &SegmentMemory, access_key: u64, taken: Epoch) -> io::Result<Tenure> {
        let (uuid, bytes, populated) = (memory.uuid(), memory.bytes(), memory.populated());
        self.change(|state| {
            state.segments.push(KeptSegment { uuid, access_key, bytes, populated, taken });
            true
        })?;
        // No process was let in before this owner, whatever its tenure.
        Ok(Tenure { number: self.tenure(), taken })
    }

    /// The holder has the state and these, from before.
    pub fn are_held(&self, segments: impl IntoIterator<Item = SegmentUuid>) {
        let mut held = self.held.lock();
        held.state = true;
        held.segments.extend(segments);
    }

    /// Whether the holder has all of this.
    pub fn is_held(&self, memories: &[Arc<SegmentMemory>]) -> bool {
        let mut held = self.held.lock();
        if !self.holder().is_there() {
            held.segments.clear();
            held.state = false;
        }
        let is_held = |memory: &Arc<SegmentMemory>| held.segments.contains(&memory.uuid());
        held.state && !memories.is_empty() && memories.iter().all(is_held)
    }

    /// Has the holder hold what it has not of this memory and its state. False: it does not take it.
    pub fn hand_over(&self, memories: &[Arc<SegmentMemory>]) -> bool {
        let mut held = self.held.lock();
        let given = self.give(&mut held, memories);
        if let Err(error) = &given
            && !std::mem::replace(&mut held.is_said, true)
        {
            tracing::warn!(%error, "nothing holds this process's memory for the next one; trying again");
        }
        held.is_said &= given.is_err();
        given.is_ok()
    }

    fn give(&self, held: &mut Held, memories: &[Arc<SegmentMemory>]) -> io::Result<()> {
        if !held.state {
            self.holder().hold(STATE, self.file.as_fd())?;
            held.state = true;
        }
        for memory in memories {
            if !held.segments.contains(&memory.uuid()) {
                let [data, control] = names(memory.uuid());
                self.holder().hold(&data, memory.data_fd())?;
                self.holder().hold(&control, memory.control_fd())?;
                held.segments.insert(memory.uuid());
            }
        }
        Ok(())
    }

    /// A segment is no more.
    pub fn forget(&self, uuid: SegmentUuid) {
        let written = self.change(|state| {
            let before = state.segments.len();
            state.segments.retain(|segment| segment.uuid != uuid);
            state.segments.len() != before
        });
        self.held.lock().segments.remove(&uuid);
        let [data, control] = names(uuid);
        let let_go = [data, control].iter().try_for_each(|name| self.holder().let_go(name));
        if let Err(error) = written.and(let_go) {
            tracing::warn!(%error, "memory that is no more is still held for the next process");
        }
    }

    /// Has nothing held any more: the store is closed.
    pub fn forget_all(&self) {
        let uuids: Vec<SegmentUuid> = self.state.lock().state.segments.iter().map(|segment| segment.uuid).collect();
        uuids.into_iter().for_each(|uuid| self.forget(uuid));
        if let Err(error) = self.holder().let_go(STATE) {
            tracing::warn!(%error, "the state of memory that is no more is still held");
        }
    }

    /// So much of a segment is populated.
    pub fn note_populated(&self, uuid: SegmentUuid, populated: u64) {
        let written = self.change_segment(uuid, |segment| {
            let is_more = populated > segment.populated;
            segment.populated = segment.populated.max(populated);
            is_more
        });
        if let Err(error) = written {
            tracing::warn!(%error, "the next process populates memory once more");
        }
    }

    /// A segment has taken an epoch, which its owner says only behind this (docs/safety.md, rule 26).
    pub fn note_taken(&self, uuid: SegmentUuid, number: u16) -> io::Result<()> {
        let asked = self.server.get().and_then(Weak::upgrade).map(|server| server.epoch());
        let epoch = asked.filter(|epoch| epoch.number == number).unwrap_or(Epoch::numbered(number));
        self.change_segment(uuid, |segment| {
            let is_later = epoch.number > segment.taken.number;
            if is_later {
                segment.taken = epoch;
            }
            is_later
        })
    }

    fn change_segment(&self, uuid: SegmentUuid, change: impl FnOnce(&mut KeptSegment) -> bool) -> io::Result<()> {
        self.change(|state| state.segments.iter_mut().find(|segment| segment.uuid == uuid).is_some_and(change))
    }

    /// Writes what has changed. Where that fails, the state is what it was.
    fn change(&self, change: impl FnOnce(&mut KeptState) -> bool) -> io::Result<()> {
        let mut written = self.state.lock();
        let mut state = written.state.clone();
        if !change(&mut state) {
            return Ok(());
        }
        let sequence = written.sequence + 1;
        let (bytes, at) = state.encode(sequence);
        self.file.write(&bytes, at)?;
        *written = Written { state, sequence };
        Ok(())
    }

    // ------------------------------------------------------------- the master

    /// What a new session shows for the memory that this process holds. Each try has a turn of its own.
    pub fn claim(&self, held: Vec<(SegmentUuid, Endpoint)>) -> Reclaim {
        let mut claims = self.claims.lock();
        let turn = claims.turn();
        let held =
            held.into_iter().map(|(uuid, endpoint)| Claimed { uuid: uuid.0.to_vec().into(), endpoint: Some(endpoint) });
        let lost = claims.lost.iter().map(|uuid| uuid.0.to_vec().into()).collect();
        let secret = self.state.lock().state.secret.to_vec().into();
        Reclaim { claim: Claim { secret, turn, held: held.collect(), lost }, turn }
    }

    /// Whether there is anything to be claimed, or to be ended.
    pub fn has_claims(&self) -> bool {
        !self.state.lock().state.segments.is_empty() || !self.claims.lock().lost.is_empty()
    }

    /// The master has taken a claim.
    pub fn claimed(&self, reclaim: &Reclaim) {
        let mut claims = self.claims.lock();
        claims.accepted = reclaim.turn;
        claims.lost.clear();
    }

    /// Nothing is kept any more of what was claimed.
    pub fn renounced(&self) {
        let mut claims = self.claims.lock();
        claims.accepted = 0;
        claims.lost.clear();
    }

    /// What the master is asked: to wait so long for the next process; `None`: not at all.
    pub fn keep(&self, time: Option<Duration>) -> Keep {
        let secret = self.state.lock().state.secret.to_vec().into();
        let ms = time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1));
        Keep { ms, secret, turn: self.claims.lock().accepted }
    }

    /// How long the master is to wait for the next process.
    pub fn time(&self) -> Duration {
        self.options.time
    }
}

impl Claims {
    fn turn(&mut self) -> u64 {
        match &mut self.heir {
            Some(heir) => heir.turn(),
            None => {
                self.made += 1;
                1 << 32 | u64::from(self.made)
            }
        }
    }
}

impl std::fmt::Debug for KeptMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptMemory").field("tenure", &self.tenure()).finish_non_exhaustive()
    }
}
