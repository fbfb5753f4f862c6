//! What lies beside memory that outlives its process: how the next one finds its way in (docs/kept-memory.md).
//!
//! Two copies in turn, each with a sequence and a checksum, so that an owner that ends in the midst of a write leaves
//! the copy before. A process of this version refuses what a later one wrote, and takes no older copy in its place.

use mooncake_ids::SegmentUuid;
use mooncake_memory::{crc32c, crc32c_append};
use mooncake_segment::Epoch;

const MAGIC: [u8; 8] = *b"MCKEPT\0\0";

/// Version of what is written here, and the highest that is read.
const VERSION: u32 = 1;

/// Bytes of one copy.
const COPY: usize = 64 << 10;

/// Bytes of the file.
pub const STATE_BYTES: u64 = 2 * COPY as u64;

/// Bytes of a copy before its contents.
const HEAD: usize = 32;

/// Longest name of an owner, bytes.
const NAME_MAX: usize = 1024;

/// Most segments: a claim names no more.
pub const SEGMENTS_MAX: usize = 512;

/// What the state says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptState {
    /// Boot that the memory is of.
    pub boot_id: [u8; 16],
    /// What its heirs show to a master.
    pub secret: [u8; 16],
    /// How manieth owner the last one was.
    pub tenure: u32,
    /// Its name, "host:port".
    pub name: String,
    /// Its segments.
    pub segments: Vec<KeptSegment>,
}

/// A segment of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptSegment {
    /// Its name in the memory itself.
    pub uuid: SegmentUuid,
    /// What peers show.
    pub access_key: u64,
    /// Its size.
    pub bytes: u64,
    /// Bytes that are populated, from the start on.
    pub populated: u64,
    /// The epoch that its owner has taken: written down before it said so.
    pub taken: Epoch,
}

/// Why a state is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Neither copy is whole.
    #[error("no copy of the state is whole")]
    NoCopy,
    /// A later version wrote it.
    #[error("the state is of version {found}, this program reads versions up to {VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// It makes no sense.
    #[error("the state of sequence {sequence} makes no sense")]
    Malformed {
        /// Which of those that were written.
        sequence: u64,
    },
}

impl KeptState {
    /// The bytes of a copy, and where in the file it goes.
    pub fn encode(&self, sequence: u64) -> (Vec<u8>, u64) {
        let mut body = Vec::new();
        body.extend(self.boot_id);
        body.extend(self.secret);
        body.extend(self.tenure.to_le_bytes());
        let name = &self.name.as_bytes()[..self.name.len().min(NAME_MAX)];
        body.extend((name.len() as u16).to_le_bytes());
        body.extend(name);
        let segments = &self.segments[..self.segments.len().min(SEGMENTS_MAX)];
        body.extend((segments.len() as u16).to_le_bytes());
        for segment in segments {
            body.extend(segment.uuid.0);
            body.extend(segment.access_key.to_le_bytes());
            body.extend(segment.bytes.to_le_bytes());
            body.extend(segment.populated.to_le_bytes());
            body.extend(segment.taken.number.to_le_bytes());
            body.extend(segment.taken.id.to_le_bytes());
        }
        let mut copy = Vec::with_capacity(HEAD + body.len());
        copy.extend(MAGIC);
        copy.extend(VERSION.to_le_bytes());
        copy.extend((body.len() as u32).to_le_bytes());
        copy.extend(sequence.to_le_bytes());
        let crc = crc32c_append(crc32c(&copy), &body);
        copy.extend(crc.to_le_bytes());
        copy.extend([0; 4]);
        copy.extend(body);
        (copy, sequence % 2 * COPY as u64)
    }

    /// Reads the file: the later one of its whole copies, and that one's sequence.
    pub fn decode(file: &[u8]) -> Result<(KeptState, u64), StateError> {
        let copies = file.chunks(COPY).take(2).filter_map(Copy::read);
        let latest = copies.max_by_key(|copy| copy.sequence).ok_or(StateError::NoCopy)?;
        let Copy { version, sequence, body } = latest;
        if version != VERSION {
            return Err(StateError::Version { found: version });
        }
        let mut fields = Fields(body);
        // No owner comes behind the last tenure.
        let state = fields.state().filter(|state| fields.0.is_empty() && state.tenure < u32::MAX);
        state.map(|state| (state, sequence)).ok_or(StateError::Malformed { sequence })
    }
}

/// A copy that is whole.
struct Copy<'a> {
    version: u32,
    sequence: u64,
    body: &'a [u8],
}

impl<'a> Copy<'a> {
    fn read(from: &'a [u8]) -> Option<Copy<'a>> {
        let mut head = Fields(from);
        if head.take()? != MAGIC {
            return None;
        }
        let (version, length, sequence) = (head.u32()?, head.u32()? as usize, head.u64()?);
        let crc = head.u32()?;
        let body = from.get(HEAD..)?.get(..length)?;
        (crc32c_append(crc32c(&from[..24]), body) == crc).then_some(Copy { version, sequence, body })
    }
}

/// What is left to be read.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn state(&mut self) -> Option<KeptState> {
        let (boot_id, secret, tenure) = (self.take()?, self.take()?, self.u32()?);
        let length = usize::from(self.u16()?);
        let (name, rest) = self.0.split_at_checked(length).filter(|_| length <= NAME_MAX)?;
        let name = String::from_utf8(name.to_vec()).ok()?;
        self.0 = rest;
        let count = usize::from(self.u16()?);
        if count > SEGMENTS_MAX {
            return None;
        }
        let segments = (0..count).map(|_| self.segment()).collect::<Option<_>>()?;
        Some(KeptState { boot_id, secret, tenure, name, segments })
    }

    fn segment(&mut self) -> Option<KeptSegment> {
        Some(KeptSegment {
            uuid: SegmentUuid(self.take()?),
            access_key: self.u64()?,
            bytes: self.u64()?,
            populated: self.u64()?,
            taken: Epoch { number: self.u16()?, id: self.u32()? },
        })
    }
}

#[cfg(test)]
mod tests {
    use mooncake_test_support::Golden;

    use super::*;

    fn state() -> KeptState {
        let segment = |byte, number| KeptSegment {
            uuid: SegmentUuid([byte; 16]),
            access_key: 0x1112_1314_1516_1718,
            bytes: 1 << 33,
            populated: 1 << 32,
            taken: Epoch { number, id: 0x8101_0203 },
        };
        KeptState {
            boot_id: [1; 16],
            secret: [2; 16],
            tenure: 3,
            name: "host:1".into(),
            segments: vec![segment(0x51, 300), segment(0x52, 0)],
        }
    }

    fn write(file: &mut [u8], state: &KeptState, sequence: u64) {
        let (bytes, at) = state.encode(sequence);
        file[at as usize..][..bytes.len()].copy_from_slice(&bytes);
    }

    fn file(states: &[(KeptState, u64)]) -> Vec<u8> {
        let mut file = vec![0; STATE_BYTES as usize];
        states.iter().for_each(|(state, sequence)| write(&mut file, state, *sequence));
        file
    }

    #[test]
    fn the_state_is_what_it_was() {
        let mut golden = Golden::default();
        golden.bytes("state.1", state().encode(1).0);
        golden.bytes("state.2.empty", KeptState { name: String::new(), segments: vec![], ..state() }.encode(2).0);
        golden.check("kept_state.txt");
    }

    #[test]
    fn the_later_copy_is_read_and_the_one_before_where_that_is_torn() {
        let (first, second) = (state(), KeptState { tenure: 4, ..state() });
        let mut both = file(&[(first.clone(), 7), (second.clone(), 8)]);
        assert_eq!(KeptState::decode(&both), Ok((second, 8)));
        let len = first.encode(8).0.len();
        for at in [0, 9, 14, 17, 25, HEAD, len - 1] {
            both[at] ^= 1;
            assert_eq!(KeptState::decode(&both), Ok((first.clone(), 7)), "byte {at}");
            both[at] ^= 1;
        }
        assert_eq!(KeptState::decode(&vec![0; STATE_BYTES as usize]), Err(StateError::NoCopy));
        assert_eq!(KeptState::decode(&[]), Err(StateError::NoCopy));
    }

    #[test]
    fn what_a_later_version_wrote_is_refused_though_an_older_copy_is_there() {
        let mut file = file(&[(state(), 1), (state(), 2)]);
        file[8] = 2;
        let length = state().encode(2).0.len() - HEAD;
        let crc = crc32c_append(crc32c(&file[..24]), &file[HEAD..HEAD + length]);
        file[24..28].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(KeptState::decode(&file), Err(StateError::Version { found: 2 }));
    }

    #[test]
    fn as_many_segments_as_a_claim_names_have_room_in_one_copy() {
        let full =
            KeptState { name: "n".repeat(NAME_MAX), segments: vec![state().segments[0]; SEGMENTS_MAX], ..state() };
        assert!(full.encode(1).0.len() <= COPY);
        assert_eq!(KeptState::decode(&file(&[(full.clone(), 1)])), Ok((full, 1)));
    }
}
