//! Ends of lanes that peers have connected. The engine posts nothing on them: cards answer for it.

use std::collections::HashMap;
use std::sync::Arc;
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

/// By the whole path of the initiator: what it connects under a path takes the place of what was there.
#[derive(Debug, Default)]
pub(crate) struct PassiveLanes {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    lanes: HashMap<String, PassiveLane>,
    is_closed: bool,
}

#[derive(Debug)]
struct PassiveLane {
    lane: Lane,
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
    let wanted = asked.wanted_nic();
    let found = nics.iter().find(|nic| nic.name() == wanted);
    let Some(nic) = found.or_else(|| nics.first().filter(|_| asked.qp_num.is_empty())) else {
        let names: Vec<&str> = nics.iter().map(|nic| nic.name()).collect();
        let why = format!("{own_name} has no RDMA device {wanted:?}; it has {}", names.join(", "));
        return answer(ConnectionBody::refusal(&asked, why).encode());
    };
    let (lanes, on) = (lanes.clone(), nic.clone());
    // A card whose thread is gone answers nothing, and the peer's deadline ends its wait.
    let _ = nic.give(move || answer(lanes.connect(&on, &asked).encode()));
}

impl PassiveLanes {
    /// On a card's thread.
    fn connect(&self, nic: &Arc<Nic>, asked: &ConnectionBody) -> ConnectionBody {
        let retired = asked.mooncake_rs.as_ref().map_or_else(Vec::new, |ours| self.retire(&ours.retire));
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
        if count > OF_A_LANE_MAX {
            return Err(format!("{count} queue pairs; a lane has {OF_A_LANE_MAX} at most"));
        }
        let ends = peer_ends(asked, count)?;
        // Whatever it had under that path it has given up; and in its place there may be a peer that was restarted.
        let before = self.table.lock().lanes.remove(&asked.local_nic_path);
        if let Some(before) = before {
            self.destroy(&asked.local_nic_path, before)?;
        }
        while nic.queue_pairs() + count as u32 > QUEUE_PAIRS_MAX {
            let oldest = {
                let mut table = self.table.lock();
                let of_this_card = table.lanes.iter().filter(|(_, lane)| Arc::ptr_eq(lane.lane.nic(), nic));
                let oldest = of_this_card.min_by_key(|(_, lane)| lane.since).map(|(path, _)| path.clone());
                oldest.and_then(|path| table.lanes.remove_entry(&path))
            };
            let Some((path, oldest)) = oldest else {
                return Err(format!("{} has no queue pair left of {QUEUE_PAIRS_MAX}", nic.name()));
            };
            self.destroy(&path, oldest)?;
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
        // Whatever came in between is of the same initiator, which has had no answer to it yet, or a liar.
        table.lanes.insert(asked.local_nic_path.clone(), PassiveLane { lane, id, since: Instant::now() });
        Ok(body)
    }

    /// Destroys lanes by what their initiator calls them; which of them are not there any more. One that is not known
    /// never was, or is gone.
    fn retire(&self, ids: &[String]) -> Vec<String> {
        let mut retired = Vec::new();
        for id in ids {
            let found = {
                let mut table = self.table.lock();
                let path =
                    table.lanes.iter().find(|(_, lane)| lane.id.as_ref() == Some(id)).map(|(path, _)| path.clone());
                path.and_then(|path| table.lanes.remove_entry(&path))
            };
            match found.map(|(path, lane)| self.destroy(&path, lane)) {
                None | Some(Ok(())) => retired.push(id.clone()),
                Some(Err(why)) => tracing::error!(why, "the end of a lane is not gone"),
            }
        }
        retired
    }

    /// Destroys a lane's queue pairs, so that nothing of its peer lands any more. What cannot be destroyed stays
    /// listed.
    fn destroy(&self, path: &str, mut lane: PassiveLane) -> Result<(), String> {
        match lane.lane.destroy() {
            Ok(()) => Ok(()),
            Err(error) => {
                self.table.lock().lanes.insert(path.to_owned(), lane);
                Err(error.to_string())
            }
        }
    }

    /// Destroys all of them, and takes no more.
    pub fn close(&self, deadline: &Deadline<'_>) -> Result<(), EngineError> {
        let lanes: Vec<PassiveLane> = {
            let mut table = self.table.lock();
            table.is_closed = true;
            table.lanes.drain().map(|(_, lane)| lane).collect()
        };
        let mut result = Ok(());
        for mut lane in lanes {
            let nic = lane.lane.nic().clone();
            let destroyed = nic.run(deadline, move || lane.lane.destroy());
            let failed = match destroyed {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            let why = format!("peers' queue pairs on {} are not gone: {failed}", nic.name());
            result = result.and(Err(EngineError::Memory(why)));
        }
        result
    }
}
