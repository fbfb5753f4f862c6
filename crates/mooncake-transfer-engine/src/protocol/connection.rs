//! The message by which queue pairs are connected, as JSON: Mooncake's, with what only two engines of ours tell each
//! other in a field of its own, which others ignore.

use mooncake_verbs::Gid;
use serde::{Deserialize, Serialize};

/// A question, and its answer, which has the paths the other way round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConnectionBody {
    /// `segment@nic` of the sender. An initiator of ours adds `#slot`.
    #[serde(default)]
    pub local_nic_path: String,
    #[serde(default)]
    pub local_lid: u16,
    #[serde(default)]
    pub local_gid: String,
    /// `segment@nic` of the receiver.
    #[serde(default)]
    pub peer_nic_path: String,
    /// The sender's queue pairs.
    #[serde(default)]
    pub qp_num: Vec<u32>,
    /// Why not; empty if it is connected.
    #[serde(default)]
    pub reply_msg: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mooncake_rs: Option<OurConnection>,
}

/// Between two engines of ours.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OurConnection {
    /// What the lane is called that is being connected, by its initiator.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lane: String,
    /// Numbers of the first packets of the queue pairs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub psn: Vec<u32>,
    /// Bytes of the largest packet.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// READs under way of one queue pair.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reads: u32,
    /// In a question: lanes whose ends here are to be destroyed. In an answer: those that are not there any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retire: Vec<String>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Longest part of a refusal that is told on.
const REASON_CHARS_MAX: usize = 300;

impl ConnectionBody {
    /// An answer that connects nothing.
    pub fn refusal(asked: &ConnectionBody, why: impl std::fmt::Display) -> ConnectionBody {
        ConnectionBody {
            local_nic_path: asked.peer_nic_path.clone(),
            peer_nic_path: asked.local_nic_path.clone(),
            reply_msg: why.to_string().chars().take(REASON_CHARS_MAX).collect(),
            ..ConnectionBody::default()
        }
    }

    /// The sender's address, if it has one.
    pub fn gid(&self) -> Option<Gid> {
        self.local_gid.parse().ok().filter(|gid: &Gid| !gid.is_zero())
    }

    /// The receiver's card: what follows the first `@` of its path.
    pub fn wanted_nic(&self) -> &str {
        self.peer_nic_path.split_once('@').map_or("", |(_, nic)| nic)
    }

    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers are JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mooncakes_messages_are_read_and_ours_are_theirs() {
        let theirs = br#"{"local_gid":"00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:01","local_lid":0,
            "local_nic_path":"127.0.0.1:15209@rxe0","payload":"","peer_nic_path":"127.0.0.1:36999@rxe2",
            "qp_num":[17,18],"ready_ack":false,"reply_msg":""}"#;
        let read: ConnectionBody = serde_json::from_slice(theirs).unwrap();
        assert_eq!((read.wanted_nic(), &read.qp_num[..]), ("rxe2", &[17, 18][..]));
        assert_eq!(read.gid().unwrap().address().to_ipv4_mapped(), Some("10.77.0.1".parse().unwrap()));
        assert_eq!(read.mooncake_rs, None);
        let refusal = ConnectionBody::refusal(&read, "no");
        assert_eq!(refusal.local_nic_path, read.peer_nic_path);
        assert_eq!(serde_json::from_str::<ConnectionBody>(&refusal.encode()).unwrap(), refusal);
        assert!(!refusal.encode().contains("ready_ack") && !refusal.encode().contains("mooncake_rs"));
    }
}
