//! Tiers in the tests of the core.

use mooncake_core::{
    OrdersAnswered, Promoted, Push, Refused, Replica, Sight, TierMount, TierMounted, TierProof, TierSpec, Written,
};
use mooncake_ids::{Rid, SessionId, TierUuid};

use super::Pool;

/// Blocks of a file in these tests.
pub const FILE_BLOCKS: u64 = 8;

/// What an owner whose disk is well grants.
pub const WINDOW: u64 = 16 << 20;

pub fn tier_uuid(number: u8) -> TierUuid {
    TierUuid([number; 16])
}

pub fn spec(number: u8) -> TierSpec {
    TierSpec {
        uuid: tier_uuid(number),
        secret: [number; 16],
        name: format!("tier-{number}"),
        bytes: 1 << 20,
        file_blocks: FILE_BLOCKS,
        endpoint: Vec::new(),
    }
}

/// A folder whose files with these numbers are there and prove all that they have.
pub fn whole(files: impl IntoIterator<Item = u64>) -> TierProof {
    TierProof { files: files.into_iter().collect(), ..TierProof::default() }
}

/// An order as its owner gets it.
#[derive(Debug, Clone)]
pub struct Order {
    pub rid: Rid,
    pub key: String,
    pub object_id: Rid,
    pub source: Replica,
}

/// A promotion as its owner gets it.
#[derive(Debug, Clone)]
pub struct Promotion {
    pub key: String,
    pub from: Replica,
    pub to: Replica,
}

pub trait WithTiers {
    fn mount_tier(
        &mut self,
        session: SessionId,
        number: u8,
        is_new: bool,
        proof: TierProof,
    ) -> Result<TierMounted, Refused>;
    fn orders(&mut self, session: SessionId) -> Vec<Order>;
    fn orders_of(&mut self, session: SessionId, number: u8) -> Vec<Order>;
    fn orders_where(&mut self, is_one: impl Fn(SessionId, TierUuid) -> bool) -> Vec<Order>;
    fn written(&mut self, session: SessionId, number: u8, written: &[(Rid, Option<u64>)]);
    fn seal(&mut self, session: SessionId, number: u8, file: u64);
    fn written_and_sealed(&mut self, session: SessionId, number: u8, written: &[(Rid, Option<u64>)], sealed: &[u64]);
    fn write_all(&mut self, session: SessionId, number: u8, from: u64) -> u64;
    fn replicas(&mut self, key: &str) -> Vec<Replica>;
    fn retired(&mut self) -> Vec<u64>;
    fn exists_for(&mut self, key: &str, sight: Sight) -> bool;
    fn promotions(&mut self, session: SessionId) -> Vec<Promotion>;
    fn promoted(&mut self, session: SessionId, copies: &[(Rid, bool)]);
}

/// A tier of one disk, as its owner mounts it.
pub fn mount(number: u8, is_new: bool, proof: TierProof) -> TierMount {
    let spec = spec(number);
    TierMount { spec, is_new, is_adopted: false, file_system: None, head: 0, records_max: None, proof }
}

impl WithTiers for Pool {
    fn mount_tier(
        &mut self,
        session: SessionId,
        number: u8,
        is_new: bool,
        proof: TierProof,
    ) -> Result<TierMounted, Refused> {
        let mounted = self.core.mount_tier(self.now, session, mount(number, is_new, proof), &mut self.fx);
        self.collect();
        mounted
    }

    fn orders(&mut self, session: SessionId) -> Vec<Order> {
        self.orders_where(|to, _| to == session)
    }

    fn orders_of(&mut self, session: SessionId, number: u8) -> Vec<Order> {
        self.orders_where(|to, tier| to == session && tier == tier_uuid(number))
    }

    fn orders_where(&mut self, is_one: impl Fn(SessionId, TierUuid) -> bool) -> Vec<Order> {
        let mut orders = Vec::new();
        self.pushes.retain(|(to, push)| match push {
            Push::TierOrder { tier, rid, key, object_id, source, .. } if is_one(*to, *tier) => {
                let key = String::from_utf8(key.to_vec()).unwrap();
                orders.push(Order { rid: *rid, key, object_id: *object_id, source: *source });
                false
            }
            _ => true,
        });
        orders
    }

    fn written(&mut self, session: SessionId, number: u8, written: &[(Rid, Option<u64>)]) {
        self.written_and_sealed(session, number, written, &[]);
    }

    fn seal(&mut self, session: SessionId, number: u8, file: u64) {
        self.written_and_sealed(session, number, &[], &[file]);
    }

    fn written_and_sealed(&mut self, session: SessionId, number: u8, written: &[(Rid, Option<u64>)], sealed: &[u64]) {
        let written = written.iter().map(|(rid, address)| Written { rid: *rid, address: *address }).collect();
        let answered = OrdersAnswered { written, window: WINDOW, sealed: sealed.to_vec() };
        self.core.orders_answered(self.now, session, tier_uuid(number), &answered, &mut self.fx);
        self.collect();
    }

    /// Answers all orders with addresses from one on, a block each; how many there were.
    fn write_all(&mut self, session: SessionId, number: u8, from: u64) -> u64 {
        let orders = self.orders(session);
        let written: Vec<(Rid, Option<u64>)> =
            orders.iter().zip(from..).map(|(order, at)| (order.rid, Some(at))).collect();
        self.written(session, number, &written);
        written.len() as u64
    }

    fn replicas(&mut self, key: &str) -> Vec<Replica> {
        self.get(key).map_or_else(Vec::new, |found| found.replicas.to_vec())
    }

    fn retired(&mut self) -> Vec<u64> {
        let mut retired = Vec::new();
        self.pushes.retain(|(_, push)| match push {
            Push::TierRetire { files, .. } => {
                retired.extend_from_slice(files);
                false
            }
            _ => true,
        });
        retired
    }

    fn exists_for(&mut self, key: &str, sight: Sight) -> bool {
        let mut there = false;
        self.core.exists(self.now, sight, [key.as_bytes()].into_iter(), |size| there = size.is_ok());
        there
    }

    fn promotions(&mut self, session: SessionId) -> Vec<Promotion> {
        let mut promotions = Vec::new();
        self.pushes.retain(|(to, push)| match push {
            Push::TierPromote { key, from, to: copy, .. } if *to == session => {
                let key = String::from_utf8(key.to_vec()).unwrap();
                promotions.push(Promotion { key, from: *from, to: *copy });
                false
            }
            _ => true,
        });
        promotions
    }

    fn promoted(&mut self, session: SessionId, copies: &[(Rid, bool)]) {
        let copies: Vec<Promoted> = copies.iter().map(|(rid, good)| Promoted { rid: *rid, good: *good }).collect();
        self.core.promoted(self.now, session, &copies, &mut self.fx);
        self.collect();
    }
}
