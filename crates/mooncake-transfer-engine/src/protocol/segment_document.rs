//! What an engine says of itself: the segment document of Mooncake's metadata, as JSON.

use std::net::SocketAddr;

use mooncake_net::ADDRESSES_MAX;
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::protocol::ids::EngineId;

/// Longest document that is read, bytes.
pub(crate) const DOCUMENT_BYTES_MAX: usize = 64 << 20;

/// A segment document. Fields that are not known are ignored, by either side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentDocument {
    pub name: String,
    pub protocol: Protocols,
    /// Where its data port is, if it says so: else on the host that its handshakes are answered on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tcp_data_host: String,
    #[serde(default)]
    pub tcp_data_port: u16,
    /// Absent is 1.
    #[serde(default = "first")]
    pub tcp_proto_version: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub timestamp: String,
    #[serde(default)]
    pub buffers: Vec<BufferDescriptor>,
    /// Its network cards; each buffer has a key for each, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceDescriptor>,
    /// Which of them are near which memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_matrix: Option<serde_json::Value>,
    /// Only an engine of ours has it.
    #[serde(default, rename = "mooncake_rs", skip_serializing_if = "Option::is_none")]
    pub ours: Option<Ours>,
}

/// One transport, or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Protocols {
    One(String),
    Several(Vec<String>),
}

impl Protocols {
    pub const NONE: Protocols = Protocols::Several(Vec::new());

    pub fn add(&mut self, name: &str) {
        let name = name.to_owned();
        *self = match std::mem::replace(self, Protocols::NONE) {
            Protocols::One(one) => Protocols::Several(vec![one, name]),
            Protocols::Several(none) if none.is_empty() => Protocols::One(name),
            Protocols::Several(several) => Protocols::Several([several, vec![name]].concat()),
        };
    }

    pub fn has(&self, name: &str) -> bool {
        match self {
            Protocols::One(one) => one == name,
            Protocols::Several(several) => several.iter().any(|one| one == name),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BufferDescriptor {
    pub name: String,
    pub addr: u64,
    pub length: u64,
    /// What peers' cards name it by, for each of the engine's cards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rkey: Vec<u32>,
    /// As many, of no use to peers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lkey: Vec<u32>,
}

/// A network card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceDescriptor {
    pub name: String,
    #[serde(default)]
    pub lid: u16,
    /// Its address, as 16 numbers of two hexadecimal digits.
    pub gid: String,
}

/// What two engines of ours need for the paths that only they have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ours {
    /// This incarnation of the engine, in hexadecimal.
    pub id: String,
    /// Boot of its host.
    pub boot: String,
    /// Abstract Unix socket, where it takes part in copies within the host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unix: String,
    /// Its TCP port is served, though its protocol is another.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tcp: bool,
    /// Buffers that its cards do not know, by address and bytes: TCP alone reaches them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tcp_only: Vec<(u64, u64)>,
    /// `ip:port` of its data in each of its networks, if it has several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tcp_addresses: Vec<String>,
}

fn first() -> u32 {
    1
}

impl SegmentDocument {
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers are JSON")
    }

    /// Reads what `peer` says of itself.
    pub fn decode(peer: &str, json: &[u8]) -> Result<SegmentDocument, EngineError> {
        let wrong = |reason: String| EngineError::malformed(peer, format!("its segment document: {reason}"));
        let read: SegmentDocument = serde_json::from_slice(json).map_err(|error| wrong(error.to_string()))?;
        for buffer in &read.buffers {
            if buffer.addr == 0 || buffer.length == 0 || buffer.addr.checked_add(buffer.length).is_none() {
                return Err(wrong(format!("a buffer of {} bytes at {:#x}", buffer.length, buffer.addr)));
            }
        }
        Ok(read)
    }

    /// Where its data port listens, if it has one: on the host that it says, or that its name or the metadata gives.
    pub fn data_at<'a>(&'a self, host: &'a str) -> Option<(&'a str, u16)> {
        let host = if self.tcp_data_host.is_empty() { host } else { &self.tcp_data_host };
        let is_served = self.protocol.has("tcp") || self.ours.as_ref().is_some_and(|ours| ours.tcp);
        (is_served && self.tcp_data_port != 0).then_some((host, self.tcp_data_port))
    }

    /// Address of the first buffer, if there is one.
    pub fn first_buffer(&self) -> Option<u64> {
        let alone = || self.ours.as_ref()?.tcp_only.first().map(|(addr, _)| *addr);
        self.buffers.first().map(|buffer| buffer.addr).or_else(alone)
    }

    /// Where its data port listens in each of several networks; empty if it says nothing of them.
    pub fn data_in_networks(&self, peer: &str) -> Result<Vec<SocketAddr>, EngineError> {
        let told = self.ours.as_ref().map_or(&[][..], |ours| &ours.tcp_addresses);
        let parsed = |text: &String| {
            text.parse().map_err(|_| EngineError::malformed(peer, format!("its segment document: address {text:?}")))
        };
        told.iter().take(ADDRESSES_MAX).map(parsed).collect()
    }

    /// The incarnation of the engine, if it is one of ours.
    pub fn engine_id(&self) -> Option<EngineId> {
        let hex = self.ours.as_ref()?.id.as_bytes();
        let mut id = EngineId::default();
        if hex.len() != 2 * id.len() {
            return None;
        }
        for (byte, pair) in id.iter_mut().zip(hex.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(id)
    }
}

/// Now, as segment documents say it: `2026-01-31 23:59:59.000000`, UTC.
pub(crate) fn timestamp() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (now.as_secs() / 86_400, now.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}.{:06}", second % 60, now.subsec_micros())
}

/// Year, month and day of so many days after 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mooncakes_documents_are_read_and_ours_are_theirs() {
        let theirs = br#"{"buffers":[{"addr":140000,"length":4096,"name":"10.0.0.1:15001"}],"name":"10.0.0.1:15001",
            "protocol":"tcp","tcp_data_port":15999,"tcp_proto_version":2,"timestamp":"2026-01-01 00:00:00.000000","x":{}}"#;
        let read = SegmentDocument::decode("p", theirs).unwrap();
        assert_eq!((read.tcp_data_port, read.tcp_proto_version, read.buffers[0].addr), (15999, 2, 140_000));
        assert_eq!(read.engine_id(), None);
        assert_eq!(read.data_at("10.9.9.9").unwrap(), ("10.9.9.9", 15999));
        let elsewhere = SegmentDocument { tcp_data_host: "10.8.8.8".into(), ..read.clone() };
        assert_eq!(elsewhere.data_at("10.9.9.9").unwrap(), ("10.8.8.8", 15999));
        let old = SegmentDocument::decode("p", br#"{"name":"a","protocol":["tcp","hip"],"buffers":[]}"#).unwrap();
        assert!(old.tcp_proto_version == 1 && old.protocol.has("tcp") && old.data_at("a").is_none());
        let mut protocols = Protocols::NONE;
        for (name, now) in [("tcp", r#""tcp""#), ("rdma", r#"["tcp","rdma"]"#), ("hip", r#"["tcp","rdma","hip"]"#)] {
            protocols.add(name);
            assert_eq!(serde_json::to_string(&protocols).unwrap(), now);
        }
        let id = "00112233445566778899aabbccddeeff".to_owned();
        let tcp_addresses = vec!["10.0.0.1:7".into(), "[fd00::1]:8".into()];
        let ours = Ours { id, boot: "b".into(), unix: "u".into(), tcp_addresses, ..Ours::default() };
        let ours = SegmentDocument { ours: Some(ours), ..read };
        assert_eq!(SegmentDocument::decode("p", ours.encode().as_bytes()).unwrap(), ours);
        assert_eq!(ours.engine_id().unwrap()[..3], [0, 0x11, 0x22]);
        let networks = ours.data_in_networks("p").unwrap();
        assert_eq!(networks, ["10.0.0.1:7".parse().unwrap(), "[fd00::1]:8".parse().unwrap()]);
        let named = br#"{"name":"a","protocol":"tcp","mooncake_rs":{"id":"","boot":"","tcp_addresses":["a:1"]}}"#;
        let error = SegmentDocument::decode("p", named).unwrap().data_in_networks("p").unwrap_err().to_string();
        assert!(error.contains("\"a:1\""), "{error}");
    }

    #[test]
    fn a_document_with_impossible_buffers_is_refused() {
        for buffer in [r#""addr":0,"length":1"#, r#""addr":1,"length":0"#, r#""addr":18446744073709551615,"length":2"#]
        {
            let json = format!(r#"{{"name":"a","protocol":"tcp","buffers":[{{"name":"n",{buffer}}}]}}"#);
            assert!(
                matches!(SegmentDocument::decode("p", json.as_bytes()), Err(EngineError::Malformed { .. })),
                "{buffer}"
            );
        }
        assert!(SegmentDocument::decode("p", b"[]").is_err() && SegmentDocument::decode("p", b"{\"name\":1}").is_err());
    }

    #[test]
    fn days_are_dates() {
        assert_eq!([0, 59, 11_016, 20_778].map(date), [(1970, 1, 1), (1970, 3, 1), (2000, 2, 29), (2026, 11, 21)]);
    }
}
