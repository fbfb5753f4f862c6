//! The state of kept memory, as a function of its bytes: for the fuzzers in `fuzz/` and for the test here.

use mooncake_ids::SegmentUuid;
use mooncake_memory::{crc32c, crc32c_append};
use mooncake_segment::Epoch;
use mooncake_test_support::FuzzTarget;

use crate::kept::state::{KeptSegment, KeptState};

/// All of them.
pub const FUZZ_TARGETS: [FuzzTarget; 1] = [FuzzTarget { name: "kept_state", read: state, seeds }];

fn state(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), sealed(bytes.to_vec())] {
        if let Ok((state, sequence)) = KeptState::decode(&bytes) {
            let (copy, at) = state.encode(sequence);
            let mut file = vec![0; at as usize];
            file.extend(copy);
            assert_eq!(KeptState::decode(&file), Ok((state, sequence)));
        }
    }
}

/// With a checksum of the first copy that is right.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(length) = bytes.get(12..16).map(|raw| u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]) as usize)
        && let Some(body) = bytes.get(32..).and_then(|rest| rest.get(..length))
    {
        let crc = crc32c_append(crc32c(&bytes[..24]), body);
        bytes[24..28].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

fn seeds() -> Vec<Vec<u8>> {
    let segment = KeptSegment {
        uuid: SegmentUuid([3; 16]),
        access_key: 4,
        bytes: 1 << 30,
        populated: 1 << 20,
        taken: Epoch { number: 1, id: 5 },
    };
    let of = |segments| KeptState { boot_id: [1; 16], secret: [2; 16], tenure: 1, name: "host:1".into(), segments };
    [Vec::new(), vec![segment], vec![segment; 3]].into_iter().map(|segments| of(segments).encode(2).0).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_that_lies_beside_memory_harms_who_reads_it() {
        mooncake_test_support::run(&super::FUZZ_TARGETS);
    }
}
