//! What processes write and read of the memory.

use mooncake_core::{Ended, Replica};
use mooncake_ids::{Rid, SessionId};

use crate::World;
use crate::memory::{Active, granules};
use crate::peer::{Attached, PeerProcess, Put, Stage, View, Way};

impl World {
    pub fn place(&mut self, nth: usize) {
        if self.peers[nth].puts.len() >= 2 {
            return;
        }
        let (key, size) = (self.any_key(), 1024 * (1 + self.dice.below(2)));
        let (session, replace) = (self.peers[nth].session, self.dice.percent(50));
        if let Some(replica) = self.put_start(session, &key, size, replace) {
            self.peers[nth].puts.push(Put { replica, stage: Stage::Placed });
        }
    }

    pub fn begin(&mut self, nth: usize) {
        let PeerProcess { puts, attached, session, .. } = &self.peers[nth];
        let Some(at) = puts.iter().position(|put| matches!(put.stage, Stage::Placed)) else { return };
        let Replica { rid, extent } = puts[at].replica;
        let range = puts[at].granules();
        let mapped = attached.iter().find(|it| it.is_writable && !it.is_over && it.session == *session);
        let mapped = mapped.map(|it| (it.id, it.mapped.clone()));
        let (memory, uses_lane) = (self.memory.clone(), self.dice.percent(15));
        let (over, mapped) = match mapped {
            Some((id, mapped)) if !uses_lane => (Way::Mapped(id), mapped),
            _ => match self.serving() {
                Some(owner) if uses_lane => {
                    (Way::Lane(owner.pid), owner.owned.as_ref().expect("it serves").mapped.clone())
                }
                _ => return,
            },
        };
        let admitted = mapped.gate.borrow_mut().admit(&*memory, rid, extent.offset, extent.length, ());
        match admitted {
            Ok(gate) => {
                self.numbers += 1;
                let number = self.numbers;
                memory.active.borrow_mut().insert(number, Active { rid, granules: range });
                self.peers[nth].puts[at].stage = Stage::Writing { over, gate, number, done: 0 };
                self.seen.direct_writes += u64::from(matches!(over, Way::Mapped(_)));
            }
            Err(_) => {
                self.peers[nth].puts.remove(at);
                self.abort(nth, rid, true);
            }
        }
    }

    fn abort(&mut self, nth: usize, rid: Rid, done: bool) {
        let origin = self.master.origin(self.peers[nth].session);
        let _ = self.master.core.abort(self.master.now, origin, &[rid], done, &mut self.master.fx);
        self.collect();
    }

    /// A granule more of what it writes, or the end of that.
    pub fn write_on(&mut self, nth: usize) {
        let memory = self.memory.clone();
        let PeerProcess { puts, attached, session, .. } = &mut self.peers[nth];
        let Some(at) = puts.iter().position(|put| !matches!(put.stage, Stage::Placed)) else { return };
        let (rid, range, session) = (puts[at].replica.rid, puts[at].granules(), *session);
        let good = match &mut puts[at].stage {
            Stage::Writing { done, .. } if *done == 0 => {
                memory.stamp(rid, range);
                *done = 1;
                return;
            }
            Stage::Writing { done, .. } if *done <= range.len() => {
                memory.store(rid, range.start + *done - 1);
                *done += 1;
                return;
            }
            Stage::Writing { over, gate, number, .. } => {
                let mapped = match over {
                    Way::Mapped(id) => attached.iter().find(|it| it.id == *id).map(|it| it.mapped.clone()),
                    Way::Lane(pid) => self.owners.get(pid).and_then(|it| Some(it.owned.as_ref()?.mapped.clone())),
                };
                memory.active.borrow_mut().remove(number);
                mapped.expect("a write keeps it mapped").gate.borrow_mut().ended(*gate);
                true
            }
            Stage::Failed | Stage::Placed => false,
        };
        puts.remove(at);
        let ended = Ended { replicas: [(rid, good)].into_iter().collect(), crc32c: 0, stays: false };
        let origin = self.master.origin(session);
        let _ = self.master.core.put_end(self.master.now, origin, &[ended], &mut self.master.fx);
        self.collect();
    }

    /// The workers of these lanes let go.
    pub fn cut_lanes(&mut self, pid: u32, writes: &[u64]) {
        let mapped = self.owners.get(&pid).and_then(|it| Some(it.owned.as_ref()?.mapped.clone()));
        self.fail_lanes(pid, |gate| writes.contains(&gate));
        if let Some(mapped) = mapped {
            writes.iter().for_each(|write| _ = mapped.gate.borrow_mut().ended(*write));
        }
    }

    pub fn lanes_end(&mut self, pid: u32) {
        self.fail_lanes(pid, |_| true);
    }

    fn fail_lanes(&mut self, pid: u32, which: impl Fn(u64) -> bool) {
        let memory = self.memory.clone();
        for put in self.peers.iter_mut().flat_map(|peer| &mut peer.puts) {
            if let Stage::Writing { over: Way::Lane(of), gate, number, .. } = put.stage
                && of == pid
                && which(gate)
            {
                memory.active.borrow_mut().remove(&number);
                put.stage = Stage::Failed;
            }
        }
    }

    // ---------------------------------------------------------------- readers

    pub fn view(&mut self, nth: usize) {
        if self.peers[nth].is_frozen || !self.peers[nth].is_back {
            return;
        }
        let (key, epoch, memory) = (self.any_key(), self.master.epoch(), self.memory.clone());
        let PeerProcess { session, attached, views, .. } = &self.peers[nth];
        let is_link = |it: &&Attached| !it.is_over && it.session == *session && it.peer.is_waited_for_in(epoch);
        let Some(id) = attached.iter().find(is_link).filter(|_| views.len() < 2).map(|it| it.id) else { return };
        let (session, origin) = (*session, self.master.origin(*session));
        let pinned = self.master.core.pin(self.master.now, origin, &[&key], &mut self.master.fx);
        self.collect();
        let Some(Replica { rid, extent }) =
            pinned.ok().and_then(|found| found.into_iter().next()?.ok()?.replicas.first().copied())
        else {
            return;
        };
        let range = granules(extent.offset, extent.length);
        match memory.read(rid, range.clone()) {
            Some(words) => {
                self.numbers += 1;
                let number = self.numbers;
                memory.views.borrow_mut().insert(number, range.clone());
                self.seen.views += 1;
                let view = View { number, rid, granules: range, words, attached: id, is_known: true };
                self.peers[nth].views.push(view);
            }
            None => self.unpin(session, rid),
        }
    }

    fn unpin(&mut self, session: SessionId, rid: Rid) {
        let origin = self.master.origin(session);
        let _ = self.master.core.unpin(self.master.now, origin, &[rid], &mut self.master.fx);
        self.collect();
    }

    pub fn end_view(&mut self, nth: usize) {
        let Some(view) = self.peers[nth].views.pop() else { return };
        self.memory.views.borrow_mut().remove(&view.number);
        assert_eq!(self.memory.words(view.granules), view.words, "a view has changed");
        if view.is_known {
            self.unpin(self.peers[nth].session, view.rid);
        }
    }
}
