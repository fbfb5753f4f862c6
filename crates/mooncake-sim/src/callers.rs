//! What the threads of an engine do with their store.

use std::time::Duration;

use mooncake_core::GRANULE;
use mooncake_wire::message::{
    Ended, Endpoint, Mount, Pin, PutConfig, PutEnd, PutStart, Remove, ReplicaOutcome, Segment, put_slot, reply, request,
};
use mooncake_wire::pack_keys;

use crate::calls::Abandoned;
use crate::store::Store;

const PATIENCE: Duration = Duration::from_millis(500);

/// Granules of a segment.
const SEGMENT: u64 = 48;

/// Pins are asked for again this often when the session was resumed meanwhile.
const ATTEMPTS: usize = 3;

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

    /// Lends memory to the pool, and other memory in the place of what is gone.
    pub async fn lend(self) {
        loop {
            self.rest(100_000).await;
            if self.session_id().is_none() || !self.held().is_empty() {
                continue;
            }
            let mut uuid = [0; 16];
            uuid[..8].copy_from_slice(&self.inner.world.number().to_le_bytes());
            let segment = Segment {
                uuid: uuid.to_vec().into(),
                name: format!("host-{}", self.inner.process.0),
                bytes: SEGMENT * GRANULE,
                endpoint: Some(Endpoint::default()),
                ..Segment::default()
            };
            // Held before the master knows it: a push about it may come first.
            self.hold(uuid);
            let body = request::Body::Mount(Mount { segment: Some(segment), populated: SEGMENT * GRANULE });
            if self.mutate(body, PATIENCE, Abandoned::Stays).await.is_err() {
                self.let_go(&uuid);
                // Perhaps only the answer was lost. The list of what is held says that it is not.
                self.resume_anew();
            }
        }
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
            let Ok(reply::Body::PutStart(reply)) =
                self.mutate(request::Body::PutStart(start), patience, Abandoned::Stays).await
            else {
                continue;
            };
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
            let _ = self.mutate(request::Body::PutEnd(PutEnd { ended }), 2 * PATIENCE, Abandoned::Stays).await;
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
            let reply::Body::Lookup(found) = answer else { unreachable!("a pin is answered by what it found") };
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
