//! What two engines of one host say over their Unix socket.
//!
//! The initiator shows which engine it means and a secret in its own memory; the target answers with one of its own and
//! a revision page that counts unregistered buffers, and with an [access page](mooncake_memory::AccessPage) if it can
//! read the initiator's memory. The access page tells either what it may still touch of the other's memory. Each reads
//! the other's secret by the very system call that bytes will be copied with: so the process at the other end is the
//! one that the kernel names, and it may be read. Then requests: the target is to pull ranges of its buffers from the
//! initiator's memory, or to say in which of its buffers ranges lie, or to send a block of its memory that the
//! initiator will map.
//!
//! All numbers are little endian.

use crate::protocol::ids::EngineId;

const MAGIC: [u8; 8] = *b"MCRSHOST";
const VERSION: u32 = 3;

pub(crate) const SECRET_LEN: usize = 16;
pub(crate) const HELLO_LEN: usize = 64;
pub(crate) const REPLY_HELLO_LEN: usize = 40;
pub(crate) const REQUEST_LEN: usize = 8;
pub(crate) const PIECE_LEN: usize = 24;
pub(crate) const ANSWER_LEN: usize = 8;

const PIECE_WORDS: usize = 3;

/// Most pieces of one request.
pub(crate) const PIECES_MAX: usize = 1_024;

/// A secret and where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Secret {
    pub addr: u64,
    pub bytes: [u8; SECRET_LEN],
}

/// The initiator begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub target: EngineId,
    pub secret: Secret,
}

impl Hello {
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut out = [0; HELLO_LEN];
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[16..32].copy_from_slice(&self.target);
        out[32..40].copy_from_slice(&self.secret.addr.to_le_bytes());
        out[40..56].copy_from_slice(&self.secret.bytes);
        out
    }

    pub fn decode(raw: &[u8; HELLO_LEN]) -> Option<Hello> {
        if raw[0..8] != MAGIC || word32(raw, 8) != VERSION {
            return None;
        }
        let secret = Secret { addr: word64(raw, 32), bytes: std::array::from_fn(|at| raw[40 + at]) };
        Some(Hello { target: std::array::from_fn(|at| raw[16 + at]), secret })
    }
}

/// How the target takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Welcome {
    /// It can read the initiator's memory.
    CanPull,
    /// It cannot: the initiator can still read, and writes by TCP.
    CannotPull,
    /// Another engine was meant.
    Stranger,
}

/// The target's answer; its revision page comes along, and an access page if it can pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HelloReply {
    pub welcome: Welcome,
    pub secret: Secret,
}

impl HelloReply {
    pub fn encode(&self) -> [u8; REPLY_HELLO_LEN] {
        let mut out = [0; REPLY_HELLO_LEN];
        out[0..8].copy_from_slice(&MAGIC);
        out[8] = self.welcome as u8;
        out[16..24].copy_from_slice(&self.secret.addr.to_le_bytes());
        out[24..40].copy_from_slice(&self.secret.bytes);
        out
    }

    pub fn decode(raw: &[u8; REPLY_HELLO_LEN]) -> Option<HelloReply> {
        let welcome = match (raw[0..8] == MAGIC, raw[8]) {
            (true, 0) => Welcome::CanPull,
            (true, 1) => Welcome::CannotPull,
            (true, 2) => Welcome::Stranger,
            _ => return None,
        };
        let secret = Secret { addr: word64(raw, 16), bytes: std::array::from_fn(|at| raw[24 + at]) };
        Some(HelloReply { welcome, secret })
    }
}

/// One range of a request: to pull it, to look for its buffer, or to name a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where, in a buffer of the target's.
    pub to: u64,
    /// From where, in the initiator's memory.
    pub from: u64,
    pub len: u64,
}

/// What is to be done with pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Pull them.
    Pull = 0,
    /// Say in which buffers they lie: after the answer, if it is `Done`, the [`Bounds`] of each one's.
    Look = 1,
    /// Send the block whose number stands in `to`: with the answer, if it is `Done`, comes its memory.
    Map = 2,
}

pub(crate) const BOUNDS_LEN: usize = 40;

/// A buffer, and the block that it lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub start: u64,
    pub len: u64,
    /// None if the initiator cannot map it.
    pub block: Option<BlockBounds>,
}

/// A block of memory that the initiator may map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockBounds {
    /// Its number in the target's process, not 0.
    pub id: u64,
    pub start: u64,
    pub len: u64,
}

impl Bounds {
    pub fn encode(&self) -> [u8; BOUNDS_LEN] {
        let block = self.block.map_or([0; 3], |block| [block.id, block.start, block.len]);
        let mut out = [0; BOUNDS_LEN];
        for (at, word) in [self.start, self.len].into_iter().chain(block).enumerate() {
            out[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// `None` if there can be no such buffer: it does not end, or lies outside of its block.
    pub fn decode(raw: &[u8; BOUNDS_LEN]) -> Option<Bounds> {
        let [start, len, id, block_start, block_len] = std::array::from_fn(|at| word64(raw, at * 8));
        let end = start.checked_add(len)?;
        let block = (id != 0).then_some(BlockBounds { id, start: block_start, len: block_len });
        let is_inside = |block: BlockBounds| {
            block.start <= start && block.start.checked_add(block.len).is_some_and(|block_end| end <= block_end)
        };
        block.is_none_or(is_inside).then_some(Bounds { start, len, block })
    }
}

/// A whole request.
pub(crate) fn request(wish: Wish, pieces: &[Piece]) -> Vec<u8> {
    let mut out = Vec::with_capacity(REQUEST_LEN + pieces.len() * PIECE_LEN);
    out.extend_from_slice(&((wish as u64) << 32 | pieces.len() as u64).to_le_bytes());
    for piece in pieces {
        for word in [piece.to, piece.from, piece.len] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }
    out
}

/// Pieces to be filled as words: what goes through the access page.
pub(crate) fn words(pieces: &[Piece]) -> impl ExactSizeIterator<Item = u64> {
    let word = |at: usize| {
        let Piece { to, from, len } = pieces[at / PIECE_WORDS];
        [to, from, len][at % PIECE_WORDS]
    };
    (0..pieces.len() * PIECE_WORDS).map(word)
}

/// The pieces; `None` if they are none, or not whole.
pub(crate) fn pieces_of(words: &[u64]) -> Option<Vec<Piece>> {
    let (whole, rest) = words.as_chunks::<PIECE_WORDS>();
    (rest.is_empty() && !whole.is_empty())
        .then(|| whole.iter().map(|&[to, from, len]| Piece { to, from, len }).collect())
}

/// The wish, and the number of pieces that follow; `None` if that is nothing that an engine asks for.
pub(crate) fn head(raw: &[u8; REQUEST_LEN]) -> Option<(Wish, usize)> {
    let word = u64::from_le_bytes(*raw);
    let wish = match word >> 32 {
        0 => Wish::Pull,
        1 => Wish::Look,
        2 => Wish::Map,
        _ => return None,
    };
    let count = word as u32 as usize;
    (1..=PIECES_MAX).contains(&count).then_some((wish, count))
}

pub(crate) fn pieces(raw: &[u8]) -> Vec<Piece> {
    let whole = raw.chunks_exact(PIECE_LEN);
    whole.map(|raw| Piece { to: word64(raw, 0), from: word64(raw, 8), len: word64(raw, 16) }).collect()
}

/// How a request ended, and at which piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// All bytes are in place.
    Done,
    /// The range is not registered.
    NotRegistered(u32),
    /// One of the two memories cannot be copied so: a device's, or not there.
    Fault(u32),
    /// The initiator's process cannot be read any more.
    Refused(u32),
}

impl Answer {
    pub fn encode(self) -> [u8; ANSWER_LEN] {
        let (code, at) = match self {
            Answer::Done => (0_u32, 0),
            Answer::NotRegistered(at) => (1, at),
            Answer::Fault(at) => (2, at),
            Answer::Refused(at) => (3, at),
        };
        (u64::from(at) << 32 | u64::from(code)).to_le_bytes()
    }

    pub fn decode(raw: &[u8; ANSWER_LEN]) -> Option<Answer> {
        let word = u64::from_le_bytes(*raw);
        let at = (word >> 32) as u32;
        match word as u32 {
            0 => Some(Answer::Done),
            1 => Some(Answer::NotRegistered(at)),
            2 => Some(Answer::Fault(at)),
            3 => Some(Answer::Refused(at)),
            _ => None,
        }
    }
}

fn word64(raw: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| raw[at + index]))
}

fn word32(raw: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| raw[at + index]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_read_as_it_was_written() {
        let secret = Secret { addr: 0x7fff_0000_1234, bytes: *b"0123456789abcdef" };
        let hello = Hello { target: *b"fedcba9876543210", secret };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        for welcome in [Welcome::CanPull, Welcome::CannotPull, Welcome::Stranger] {
            let reply = HelloReply { welcome, secret };
            assert_eq!(HelloReply::decode(&reply.encode()), Some(reply));
        }
        let asked = [Piece { to: 1, from: 2, len: 3 }, Piece { to: 4, from: 5, len: u64::MAX }];
        for wish in [Wish::Pull, Wish::Look, Wish::Map] {
            let raw = request(wish, &asked);
            assert_eq!(head(raw[..8].try_into().unwrap()), Some((wish, 2)));
            assert_eq!(pieces(&raw[8..]), asked);
        }
        let block = Some(BlockBounds { id: 9, start: 4096, len: 8192 });
        for bounds in [Bounds { start: 7, len: 8, block: None }, Bounds { start: 5000, len: 7288, block }] {
            assert_eq!(Bounds::decode(&bounds.encode()), Some(bounds));
        }
        for answer in [Answer::Done, Answer::NotRegistered(7), Answer::Fault(0), Answer::Refused(u32::MAX)] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(Hello::decode(&[7; HELLO_LEN]), None);
        assert_eq!(HelloReply::decode(&[0; REPLY_HELLO_LEN]), None);
        assert_eq!(Answer::decode(&[9; ANSWER_LEN]), None);
        let block = |start, len| Some(BlockBounds { id: 9, start, len });
        for (start, len, block) in [
            (7, u64::MAX, None),
            (5000, 7289, block(4096, 8192)),
            (4095, 1, block(4096, 8192)),
            (u64::MAX - 8, 8, block(u64::MAX - 9, 10)),
        ] {
            assert_eq!(Bounds::decode(&Bounds { start, len, block }.encode()), None, "{start} {len}");
        }
        for wrong in [0, PIECES_MAX as u64 + 1, 3 << 32 | 1, u64::MAX] {
            assert_eq!(head(&wrong.to_le_bytes()), None);
        }
    }
}
