//! What the threads of an engine do with their store.

use std::time::Duration;

use mooncake_client::SegmentId;
use mooncake_client::machine::owner::{Output, Pinned, Told, must_resume};
use mooncake_core::GRANULE;
use mooncake_transfer::Uuid;
use mooncake_wire::message::{
    Ended, Endpoint, Mount, Pin, PutConfig, PutEnd, PutStart, Remove, ReplicaOutcome, Segment, Unmount, put_slot,
    reply, request,
};
use mooncake_wire::pack_keys;

use crate::calls::{Abandoned, Answer, NoAnswer, PATIENCE};
use crate::store::Store;

/// Granules of a segment.
const SEGMENT: u64 = 48;

/// Pins are asked for again this often when the session was resumed meanwhile.
const ATTEMPTS: usize = 3;

fn told(answer: &Result<Answer, NoAnswer>) -> Told {
    match answer {
        Ok(_) => Told::Done,
        Err(NoAnswer::Refused(_)) => Told::Refused,
        Err(NoAnswer::Late) => Told::Unanswered,
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

impl Store {
    fn key(&self) -> Vec<u8> {
        key(self.inner.world.below(14))
    }

    async fn rest(&self, micros: u64) {
        self.inner.world.sleep_micros(1_000 + self.inner.world.below(micros)).await;
    }

    /// Lends memory to the pool, and other memory in the place of what is gone: what the owner's thread does.
    pub async fn lend(self) {
        while self.session_id().is_none() {
            self.rest(20_000).await;
        }
        while !self.mount(None).await {
            self.rest(100_000).await;
        }
        loop {
            let next = self.inner.work.borrow_mut().pop_front();
            match next {
                Some(Output::GiveBack { memory, pinned }) => self.give_back(memory, pinned.as_ref()).await,
                Some(Output::Replace { id, .. }) => {
                    while !self.mount(Some(id)).await {
                        self.rest(100_000).await;
                    }
                }
                None => self.rest(20_000).await,
            }
        }
    }

    async fn mount(&self, id: Option<SegmentId>) -> bool {
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&self.inner.world.number().to_le_bytes());
        self.serve(uuid);
        let segment = Segment {
            uuid: uuid.to_vec().into(),
            name: format!("host-{}", self.inner.process.0),
            bytes: SEGMENT * GRANULE,
            endpoint: Some(Endpoint::default()),
            ..Segment::default()
        };
        self.inner.owner.borrow_mut().mount(id, uuid, uuid);
        let body = request::Body::Mount(Mount { segment: Some(segment), populated: SEGMENT * GRANULE });
        let told = told(&self.finish_now(body, PATIENCE).await);
        let is_held = self.inner.owner.borrow_mut().mount_answered(uuid, told);
        if !is_held {
            self.give_back(uuid, None).await;
        }
        told == Told::Done
    }

    async fn give_back(&self, uuid: Uuid, pinned: Option<&Pinned>) {
        let must_unmount = self.inner.owner.borrow().must_unmount(pinned);
        if must_unmount {
            let body = request::Body::Unmount(Unmount { uuid: uuid.to_vec().into(), grace_ms: 0 });
            if must_resume(told(&self.finish(body, PATIENCE).await)) {
                self.resume_anew();
            }
        }
        self.serve_no_more(&uuid);
    }

    /// Puts objects of no bytes.
    pub async fn put(self, stops: Duration) {
        while self.inner.world.now() < stops {
            self.rest(60_000).await;
            let start = PutStart {
                keys: Some(pack_keys(&[self.key()])),
                sizes: vec![GRANULE * (1 + self.inner.world.below(4))],
                config: Some(PutConfig {
                    replica_num: 1,
                    replace: self.inner.world.percent(30),
                    ..PutConfig::default()
                }),
                wait: true,
                groups: None,
            };
            let patience = PATIENCE + Duration::from_millis(2_500);
            let asked = self.mutate(request::Body::PutStart(start), patience, Abandoned::GivesUpPlacements).await;
            let Ok(Answer { body: reply::Body::PutStart(reply), session, .. }) = asked else { continue };
            let placed = reply.slots.iter().filter(|slot| slot.kind() == put_slot::Kind::Placed);
            let ended: Vec<Ended> = placed
                .map(|slot| Ended {
                    replicas: slot.replicas.iter().map(|it| ReplicaOutcome { rid: it.rid, good: true }).collect(),
                    crc32c: 0,
                })
                .collect();
            if ended.is_empty() {
                continue;
            }
            self.rest(5_000).await;
            let rids = ended.iter().flat_map(|ended| &ended.replicas).map(|replica| replica.rid).collect();
            if self.finish_in(&session, request::Body::PutEnd(PutEnd { ended }), 2 * PATIENCE).await.is_err() {
                self.give_up_later(&session, rids, true);
            }
        }
    }

    /// Removes some.
    pub async fn remove(self, stops: Duration) {
        while self.inner.world.now() < stops {
            self.rest(400_000).await;
            let remove = Remove { keys: Some(pack_keys(&[self.key()])), force: true };
            let _ = self.mutate(request::Body::Remove(remove), 2 * PATIENCE, Abandoned::Stays).await;
        }
    }

    /// Takes views, holds them for a while, and ends them.
    pub async fn view(self, stops: Duration) {
        while self.inner.world.now() < stops {
            self.rest(60_000).await;
            if let Some((era, rid)) = self.pin(self.key()).await {
                self.inner.views.set(self.inner.views.get() + 1);
                self.inner.world.sleep_micros(10_000 + self.inner.world.below(3_000_000)).await;
                self.release(era, rid);
            }
        }
    }

    async fn pin(&self, key: Vec<u8>) -> Option<(u64, u64)> {
        for _ in 0..ATTEMPTS {
            let generation = self.inner.pins.borrow().generation();
            let body = request::Body::Pin(Pin { keys: Some(pack_keys(&[&key])) });
            let answer = self.mutate(body, PATIENCE, Abandoned::VoidsPins).await.ok()?;
            let reply::Body::Lookup(found) = answer.body else { unreachable!("a pin is answered by what it found") };
            let rid = found.objects.first()?.replicas.first()?.rid;
            let adopted = self.inner.pins.borrow_mut().adopt(generation, [rid].into_iter());
            match adopted {
                Some(era) => return Some((era, rid)),
                // The master was told meanwhile what this store holds, and this pin was not on the list; if it came after it,
                // it must go.
                None => self.resume_anew(),
            }
        }
        None
    }

    fn release(&self, era: u64, rid: u64) {
        if self.inner.pins.borrow_mut().release(era, rid) {
            self.ring();
        }
    }
}
