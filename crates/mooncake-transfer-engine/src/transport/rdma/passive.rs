//! Ends of lanes that peers have connected. The engine posts nothing on them: cards answer for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use mooncake_os::Deadline;
use mooncake_rdma::{Lane, Nic};
use parking_lot::Mutex;

use super::connector::peer_ends;
use crate::error::EngineError;
use crate::protocol::connection::{ConnectionBody, OurConnection};
use crate::transport::Answer;

/// Queue pairs of one card at most, by both sides of lanes. For one more lane, the oldest of peers' is closed.
const QUEUE_PAIRS_MAX: u32 = 1_024;

/// Queue pairs of one lane at most.
const OF_A_LANE_MAX: usize = 64;

/// Bytes of a path at most, of what a lane is called, and how many lanes end by one question.
const PATH_BYTES_MAX: usize = 512;
const ID_BYTES_MAX: usize = 32;
pub(super) const RETIRED_MAX: usize = 64;

/// Answers that wait for cards at most: each has a connection.
const WAITING_MAX: usize = 64;

/// The card of this engine, and the whole path of the initiator: what it connects under them takes the place of what
/// was there.
type Key = (String, String);

/// The ends of peers' lanes.
#[derive(Debug, Default)]
pub(crate) struct PassiveLanes {
    table: Mutex<Table>,
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    lanes: HashMap<Key, PassiveLane>,
    is_closed: bool,
}

#[derive(Debug)]
struct PassiveLane {
    /// None while it is being ended: it is not gone before that has worked.
    lane: Option<Lane>,
    nic: Arc<Nic>,
    /// What an initiator of ours calls it.
    id: Option<String>,
    since: Instant,
}

/// Answers a peer that wants queue pairs connected, or ended, on the thread of the card that it names.
pub(super) fn answer(
    lanes: &Arc<PassiveLanes>,
    nics: &Arc<[Arc<Nic>]>,
    own_name: &str,
    asked: Vec<u8>,
    answer: Answer,
) {
    let asked: ConnectionBody = match serde_json::from_slice(&asked) {
        Ok(asked) => asked,
        Err(error) => {
            let why = format!("no connection can be read of that: {error}");
            return answer(ConnectionBody::refusal(&ConnectionBody::default(), why).encode());
        }
    };
    if let Err(why) = check(&asked) {
        return answer(ConnectionBody::refusal(&ConnectionBody::default(), why).encode());
    }
    let wanted = asked.wanted_nic();
    let Some(nic) = nics.iter().find(|nic| nic.name() == wanted) else {
        let names: Vec<&str> = nics.iter().map(|nic| nic.name()).collect();
        let why = format!("{own_name} has no RDMA device {wanted:?}; it has {}", names.join(", "));
        return answer(ConnectionBody::refusal(&asked, why).encode());
    };
    if lanes.waiting.fetch_add(1, Ordering::SeqCst) >= WAITING_MAX {
        lanes.waiting.fetch_sub(1, Ordering::SeqCst);
        let why = format!("{WAITING_MAX} peers wait for the devices of {own_name}");
        return answer(ConnectionBody::refusal(&asked, why).encode());
    }
    let (own, on) = (lanes.clone(), nic.clone());
    let given = nic.give(move || {
        answer(own.connect(&on, &asked).encode());
        own.waiting.fetch_sub(1, Ordering::SeqCst);
    });
    if given.is_err() {
        // A card whose thread is gone answers nothing, and the peer's deadline ends its wait.
        lanes.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Bounds of what a stranger may have kept.
fn check(asked: &ConnectionBody) -> Result<(), String> {
    let longest = asked.local_nic_path.len().max(asked.peer_nic_path.len());
    if longest > PATH_BYTES_MAX {
        return Err(format!("a path of {longest} bytes; it has {PATH_BYTES_MAX} at most"));
    }
    if asked.qp_num.len() > OF_A_LANE_MAX {
        return Err(format!("{} queue pairs; a lane has {OF_A_LANE_MAX} at most", asked.qp_num.len()));
    }
    let Some(ours) = &asked.mooncake_rs else { return Ok(()) };
    if ours.retire.len() > RETIRED_MAX {
        return Err(format!("{} lanes to be ended; {RETIRED_MAX} at a time", ours.retire.len()));
    }
    let longest = ours.retire.iter().chain([&ours.lane]).map(String::len).max().unwrap_or(0);
    if longest > ID_BYTES_MAX {
        return Err(format!("a lane's name of {longest} bytes; it has {ID_BYTES_MAX} at most"));
    }
    Ok(())
}

impl PassiveLanes {
    /// On the card's thread, which alone ends lanes of it.
    fn connect(&self, nic: &Arc<Nic>, asked: &ConnectionBody) -> ConnectionBody {
        let retired = asked.mooncake_rs.as_ref().map_or_else(Vec::new, |ours| self.retire(nic, &ours.retire));
        if asked.qp_num.is_empty() {
            let ours = OurConnection { retire: retired, ..OurConnection::default() };
            let body = ConnectionBody::refusal(asked, "");
            return ConnectionBody { mooncake_rs: Some(ours), ..body };
        }
        match self.connect_lane(nic, asked) {
            Ok(mut ours) => {
                if let Some(own) = &mut ours.mooncake_rs {
                    own.retire = retired;
                }
                ours
            }
            Err(why) => {
                tracing::warn!(nic = nic.name(), peer = asked.local_nic_path, why, "a peer is not connected by RDMA");
                ConnectionBody::refusal(asked, why)
            }
        }
    }

    fn connect_lane(&self, nic: &Arc<Nic>, asked: &ConnectionBody) -> Result<ConnectionBody, String> {
        let count = asked.qp_num.len();
        let ends = peer_ends(asked, count)?;
        let key = (nic.name().to_owned(), asked.local_nic_path.clone());
        // Whatever it had under that path it has given up; and in its place there may be a peer that was restarted.
        self.end(&key)?;
        while nic.queue_pairs() + count as u32 > QUEUE_PAIRS_MAX {
            let oldest = {
                let table = self.table.lock();
                let of_this_card = table.lanes.iter().filter(|(_, lane)| Arc::ptr_eq(&lane.nic, nic));
                of_this_card.min_by_key(|(_, lane)| lane.since).map(|(key, _)| key.clone())
            };
            let Some(oldest) = oldest else {
                return Err(format!("{} has no queue pair left of {QUEUE_PAIRS_MAX}", nic.name()));
            };
            self.end(&oldest)?;
        }
        let connected = Lane::with_queue_pairs(nic, count).and_then(|lane| lane.connect(&ends).map(|()| lane));
        let lane = connected.map_err(|error| error.to_string())?;
        let (numbers, psn): (Vec<u32>, Vec<u32>) = lane.ends().into_iter().unzip();
        let body = ConnectionBody {
            local_nic_path: asked.peer_nic_path.clone(),
            local_lid: nic.lid(),
            local_gid: nic.gid().to_string(),
            peer_nic_path: asked.local_nic_path.clone(),
            qp_num: numbers,
            reply_msg: String::new(),
            mooncake_rs: asked.mooncake_rs.as_ref().map(|theirs| OurConnection {
                lane: theirs.lane.clone(),
                psn,
                mtu: nic.mtu().bytes(),
                reads: nic.reads().into(),
                retire: Vec::new(),
            }),
        };
        let id = asked.mooncake_rs.as_ref().map(|ours| ours.lane.clone()).filter(|id| !id.is_empty());
        let mut table = self.table.lock();
        if table.is_closed {
            return Err("the engine is closed".into());
        }
        // The card's thread alone adds lanes of it: nothing has come in between.
        table.lanes.insert(key, PassiveLane { lane: Some(lane), nic: nic.clone(), id, since: Instant::now() });
        Ok(body)
    }

    /// Ends lanes of this card by what their initiator calls them; which of them are not there any more. One that is
    /// not known never was, or is gone.
    fn retire(&self, nic: &Arc<Nic>, ids: &[String]) -> Vec<String> {
        let mut retired = Vec::new();
        for id in ids {
            let found = {
                let table = self.table.lock();
                let is_it = |(_, lane): &(&Key, &PassiveLane)| lane.id.as_ref() == Some(id);
                table.lanes.iter().find(is_it).map(|(key, lane)| (key.clone(), Arc::ptr_eq(&lane.nic, nic)))
            };
            match found {
                None => retired.push(id.clone()),
                // Another card's thread is asked for it.
                Some((_, false)) => {}
                Some((key, true)) => match self.end(&key) {
                    Ok(()) => retired.push(id.clone()),
                    Err(why) => tracing::error!(why, "the end of a lane is not gone"),
                },
            }
        }
        retired
    }

    /// Destroys a lane's queue pairs, on its card's thread, so that nothing of its peer lands any more. Until that has
    /// worked it stays listed.
    fn end(&self, key: &Key) -> Result<(), String> {
        let taken = match self.table.lock().lanes.get_mut(key) {
            None => return Ok(()),
            Some(listed) => listed.lane.take(),
        };
        let Some(mut lane) = taken else { return Err("what was under that path is still being ended".into()) };
        let destroyed = lane.destroy();
        let mut table = self.table.lock();
        match destroyed {
            Ok(()) => {
                table.lanes.remove(key);
                drop(table);
                Ok(())
            }
            Err(error) => {
                if let Some(listed) = table.lanes.get_mut(key) {
                    listed.lane = Some(lane);
                }
                Err(error.to_string())
            }
        }
    }

    /// Ends all of them, and takes no more. After an error it may be called again.
    pub fn close(self: &Arc<PassiveLanes>, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let keys: Vec<(Key, Arc<Nic>)> = {
            let mut table = self.table.lock();
            table.is_closed = true;
            let there = table.lanes.iter().filter(|(_, lane)| lane.lane.is_some());
            there.map(|(key, lane)| (key.clone(), lane.nic.clone())).collect()
        };
        for (key, nic) in keys {
            let own = self.clone();
            let _ = nic.give(move || {
                if let Err(why) = own.end(&key) {
                    tracing::error!(why, "the end of a lane is not gone");
                }
            });
        }
        let is_done = deadline.wait_until(|| self.table.lock().lanes.is_empty());
        if is_done {
            return Ok(());
        }
        let left = self.table.lock().lanes.len();
        Err(EngineError::Memory(format!("{left} lanes of peers are not gone: their cards do not answer")))
    }
}
