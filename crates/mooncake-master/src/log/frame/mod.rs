//! Frames of log and snapshot files.
//!
//! `{ u32 length, u32 crc, u64 lsn, payload }`, little-endian. The CRC-32C runs
//! over the log id, the LSN and the payload, so that a frame of another log, or
//! one that landed at another place of this one, does not check.

use mooncake_core::Record;
use mooncake_memory::{crc32c, crc32c_append};
use serde::Deserialize;

/// Bytes before the payload.
pub const HEADER: usize = 16;

/// Largest payload: a batch of the largest request with its reply.
pub const PAYLOAD_BYTES_MAX: usize = 512 << 20;

/// Starts a frame at the end of `out`; the payload is appended next.
pub fn begin(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER]);
    start
}

/// Completes the frame that [`begin`] started.
pub fn finish(out: &mut [u8], start: usize, log_id: u64, lsn: u64) {
    let length = (out.len() - start - HEADER) as u32;
    out[start + 8..start + 16].copy_from_slice(&lsn.to_le_bytes());
    let crc = checksum(log_id, &out[start + 8..]);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

/// Appends one record to a payload.
pub fn put_record(record: &Record, out: &mut Vec<u8>) {
    /// Postcard's way to append to a borrowed Vec without moving it.
    struct Append<'a>(&'a mut Vec<u8>);
    impl postcard::ser_flavors::Flavor for Append<'_> {
        type Output = ();
        fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
            match data {
                // Most numbers are one byte, for which a copy would be a call.
                [byte] => self.0.push(*byte),
                _ => self.0.extend_from_slice(data),
            }
            Ok(())
        }
        fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
            self.0.push(byte);
            Ok(())
        }
        fn finalize(self) -> postcard::Result<()> {
            Ok(())
        }
    }
    postcard::serialize_with_flavor(record, Append(out)).expect("records have no maps of unknown length");
}

/// What stands at a position of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// A frame that checks.
    Frame {
        /// Its position in the log.
        lsn: u64,
        /// Its records.
        payload: &'a [u8],
        /// Bytes from its start to its end.
        size: usize,
    },
    /// The bytes end before the frame does; it needs this many in all.
    Short(usize),
    /// Not a frame of this log.
    Bad,
}

/// Decodes the frame at the start of `bytes`.
pub fn decode(bytes: &[u8], log_id: u64) -> Decoded<'_> {
    if bytes.len() < HEADER {
        return Decoded::Short(HEADER);
    }
    let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
    if length > PAYLOAD_BYTES_MAX {
        return Decoded::Bad;
    }
    let size = HEADER + length;
    if bytes.len() < size {
        return Decoded::Short(size);
    }
    let crc = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    let lsn = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    // LSN 0 is no frame, so that a file of zeros is none either.
    if lsn == 0 || checksum(log_id, &bytes[8..size]) != crc {
        return Decoded::Bad;
    }
    Decoded::Frame { lsn, payload: &bytes[HEADER..size], size }
}

/// The records of a payload, in order, with keys of their own or where they lie in the payload.
pub fn records<'a, K: Deserialize<'a>>(
    mut payload: &'a [u8],
) -> impl Iterator<Item = Result<Record<K>, postcard::Error>> + 'a {
    std::iter::from_fn(move || {
        if payload.is_empty() {
            return None;
        }
        match postcard::take_from_bytes(payload) {
            Ok((record, rest)) => {
                payload = rest;
                Some(Ok(record))
            }
            Err(error) => {
                payload = &[];
                Some(Err(error))
            }
        }
    })
}

/// Looks for a whole frame with an LSN in `lsns` anywhere in `bytes`.
pub fn find_later(bytes: &[u8], log_id: u64, lsns: std::ops::RangeInclusive<u64>) -> Option<u64> {
    // Most positions fail on the LSN, which costs nothing; the CRC is computed for the rest only.
    (0..bytes.len().saturating_sub(HEADER - 1)).find_map(|at| {
        let lsn = u64::from_le_bytes(bytes[at + 8..at + 16].try_into().expect("eight bytes"));
        if !lsns.contains(&lsn) {
            return None;
        }
        matches!(decode(&bytes[at..], log_id), Decoded::Frame { .. }).then_some(lsn)
    })
}

fn checksum(log_id: u64, lsn_and_payload: &[u8]) -> u32 {
    crc32c_append(crc32c(&log_id.to_le_bytes()), lsn_and_payload)
}

#[cfg(test)]
mod tests;
