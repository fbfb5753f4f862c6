//! Frames: u32 little-endian length, then that many bytes of one message.

use bytes::{Bytes, BytesMut};
use prost::Message;

/// Largest frame accepted after the hello, bytes.
pub const FRAME_BYTES_MAX: usize = 64 << 20;

/// Largest hello, bytes: what a stranger may make us allocate.
pub const HELLO_FRAME_BYTES_MAX: usize = 1 << 20;

const HEADER: usize = 4;

/// Why a frame could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The peer announced more than the limit.
    #[error("frame of {length} bytes announced, the limit is {limit}")]
    TooLong {
        /// Announced length, bytes.
        length: usize,
        /// Limit in force, bytes.
        limit: usize,
    },
    /// The bytes are not the expected message.
    #[error("frame does not decode: {0}")]
    Decode(#[from] prost::DecodeError),
}

/// Appends one framed message to `out`.
pub fn encode_frame<M: Message>(message: &M, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER]);
    // A Vec grows as needed, so encoding into it cannot fail.
    message.encode_raw(out);
    let length = (out.len() - start - HEADER) as u32;
    out[start..start + HEADER].copy_from_slice(&length.to_le_bytes());
}

/// Cuts frames out of bytes as they arrive, for callers that do their own I/O.
///
/// Memory is bounded: nothing is reserved for a frame before its bytes come.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: BytesMut,
}

impl FrameReader {
    /// The buffer to append received bytes to.
    pub fn buffer_mut(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next whole frame's body, or `None` until more bytes have come.
    pub fn next_frame(&mut self, limit: usize) -> Result<Option<Bytes>, FrameError> {
        if self.buffer.len() < HEADER {
            return Ok(None);
        }
        let length = u32::from_le_bytes([self.buffer[0], self.buffer[1], self.buffer[2], self.buffer[3]]) as usize;
        if length > limit {
            return Err(FrameError::TooLong { length, limit });
        }
        if self.buffer.len() < HEADER + length {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(HEADER + length);
        let _ = frame.split_to(HEADER);
        Ok(Some(frame.freeze()))
    }

    /// True when a frame has begun and is not whole yet.
    pub fn is_partial(&self) -> bool {
        !self.buffer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Exists, Keys};

    fn sample() -> Exists {
        Exists { keys: Some(Keys { blob: Bytes::from_static(b"ab"), lengths: vec![1, 1] }), sizes: true }
    }

    #[test]
    fn a_frame_survives_any_split() {
        let mut wire = Vec::new();
        encode_frame(&sample(), &mut wire);
        encode_frame(&sample(), &mut wire);
        for cut in 0..wire.len() {
            let mut reader = FrameReader::default();
            let mut got = Vec::new();
            for part in [&wire[..cut], &wire[cut..]] {
                reader.buffer_mut().extend_from_slice(part);
                while let Some(frame) = reader.next_frame(FRAME_BYTES_MAX).unwrap() {
                    got.push(Exists::decode(frame).unwrap());
                }
            }
            assert_eq!(got, vec![sample(), sample()]);
            assert!(!reader.is_partial());
        }
    }

    #[test]
    fn an_announced_giant_is_refused_before_it_is_allocated() {
        let mut reader = FrameReader::default();
        reader.buffer_mut().extend_from_slice(&[0xff; 4]);
        assert!(matches!(reader.next_frame(16), Err(FrameError::TooLong { limit: 16, .. })));
    }
}
