//! What a peer's memory is named by.

use mooncake_verbs::Remote;

use crate::protocol::segment_document::SegmentDocument;

/// A peer's buffers with their keys, by ascending address, and its cards.
#[derive(Debug, Default)]
pub(crate) struct PeerKeys {
    pub nics: Vec<String>,
    buffers: Vec<(u64, u64, Vec<u32>)>,
    /// By address and bytes: its cards do not know them.
    tcp_only: Vec<(u64, u64)>,
}

impl PeerKeys {
    /// Buffers without a key for each card are as if they were not there.
    pub fn of(document: &SegmentDocument) -> PeerKeys {
        let nics: Vec<String> = document.devices.iter().map(|device| device.name.clone()).collect();
        let has_keys = |keys: &Vec<u32>| keys.len() == nics.len();
        let buffers = document.buffers.iter().filter(|buffer| has_keys(&buffer.rkey));
        let mut buffers: Vec<_> = buffers.map(|buffer| (buffer.addr, buffer.length, buffer.rkey.clone())).collect();
        buffers.sort_unstable();
        let tcp_only = document.ours.as_ref().map_or_else(Vec::new, |ours| ours.tcp_only.clone());
        PeerKeys { nics, buffers, tcp_only }
    }

    /// Whether its cards are known not to know an address.
    pub fn is_tcp_only(&self, addr: u64) -> bool {
        self.tcp_only.iter().any(|(start, len)| (*start..start.saturating_add(*len)).contains(&addr))
    }

    /// The part of a peer's range that one key opens, from its start on, with that of this card: what it is named by,
    /// and how many bytes.
    pub fn part(&self, nic: usize, addr: u64, len: u64) -> Option<(Remote, u64)> {
        let before = self.buffers.partition_point(|(start, ..)| *start <= addr);
        let (start, length, keys) = &self.buffers[before.checked_sub(1)?];
        let left = (start + length).checked_sub(addr).filter(|left| *left > 0)?;
        Some((Remote { addr, key: *keys.get(nic)? }, left.min(len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_where_its_key_changes_and_ends_where_there_is_none() {
        let json = br#"{"name":"a","protocol":"rdma",
            "devices":[{"name":"x","lid":0,"gid":"g"},{"name":"y","lid":0,"gid":"g"}],
            "buffers":[{"name":"*","addr":8192,"length":4096,"rkey":[3,4],"lkey":[0,0]},
            {"name":"*","addr":4096,"length":4096,"rkey":[1,2],"lkey":[0,0]},
            {"name":"*","addr":65536,"length":4096,"rkey":[5],"lkey":[0]}]}"#;
        let keys = PeerKeys::of(&SegmentDocument::decode("p", json).unwrap());
        let part = |nic, addr, len| keys.part(nic, addr, len).map(|(remote, len)| (remote.key, len));
        assert_eq!(part(0, 4096, 100), Some((1, 100)));
        assert_eq!(part(1, 8000, 4096), Some((2, 192)));
        assert_eq!(part(1, 8192, 9999), Some((4, 4096)));
        assert_eq!([part(0, 4095, 1), part(0, 12_288, 1), part(0, 65_536, 1), part(2, 4096, 1)], [None; 4]);
    }
}
