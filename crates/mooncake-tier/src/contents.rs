//! What a file holds: by its footer, or, of one that was never sealed, by its headers, looked for block by block.

use std::io;

use mooncake_ids::{Rid, TierUuid};

use crate::address::{Address, BLOCK, FileNumber, Geometry};
use crate::footer::{Entry, Tail};
use crate::io_counts::CountedReads;
use crate::medium::{Medium, Operation};
use crate::record::{Header, NotAHeader};
use crate::slots::{SLOT_BYTES, Slots};
use crate::tier::carry_out;

/// Bytes that are read together while records are looked for.
const WINDOW: u64 = 1 << 20;

/// Records of a file, in the order of their addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// The records.
    pub entries: Vec<Entry>,
    /// They were told by the footer: no header was looked at.
    pub is_sealed: bool,
}

/// Reads what a file of that many bytes holds.
pub fn contents<M: Medium>(
    medium: &M,
    (tier, geometry): (TierUuid, Geometry),
    (number, bytes): (FileNumber, u64),
    slots: &Slots,
    counted: &CountedReads,
) -> io::Result<Contents> {
    let file = medium.open(&number.name(), false)?;
    let read = |offset: u64, into: &mut Vec<u8>| -> io::Result<()> {
        let (mut at, end) = (offset, offset + into.len() as u64);
        while at < end {
            let slot = slots.take().ok_or(io::ErrorKind::OutOfMemory)?;
            let len = (end - at).min(SLOT_BYTES as u64) as usize;
            let read = Operation::Read { file: file.clone(), offset: at, slot, len };
            let (_, slot) = counted.waited(len as u64, || carry_out(medium, read))?;
            let slot = slot.expect("a read has a slot");
            into[(at - offset) as usize..][..len].copy_from_slice(&slot[..len]);
            at += len as u64;
        }
        Ok(())
    };
    // A loss of power may leave the name of a file, and nothing of it.
    let Some(last_at) = bytes.checked_sub(BLOCK) else { return Ok(Contents { entries: Vec::new(), is_sealed: false }) };
    let by_footer = || -> io::Result<Option<Vec<Entry>>> {
        let mut last = vec![0; BLOCK as usize];
        read(last_at, &mut last)?;
        let Some(tail) = Tail::decode(&last, tier, number, bytes) else { return Ok(None) };
        let mut encoded = vec![0; tail.entries_bytes.next_multiple_of(BLOCK) as usize];
        read(tail.entries_at, &mut encoded)?;
        Ok(tail.entries(&encoded[..tail.entries_bytes as usize]))
    };
    match by_footer() {
        Ok(Some(entries)) => return Ok(Contents { entries, is_sealed: true }),
        // What the disk cannot read of a file is not all that it has.
        Ok(None) => {}
        Err(error) if is_for_now(&error) => return Err(error),
        Err(error) => {
            tracing::warn!(file = number.0, %error, "a file's footer cannot be read: its records are looked for")
        }
    }
    walk(read, (tier, geometry), (number, bytes)).map(|entries| Contents { entries, is_sealed: false })
}

/// The id of the object whose record lies at an address; none where none does.
pub fn object_id<M: Medium>(
    medium: &M,
    (tier, geometry): (TierUuid, Geometry),
    (number, address): (FileNumber, Address),
    slots: &Slots,
    counted: &CountedReads,
) -> io::Result<Option<Rid>> {
    let file = medium.open(&number.name(), false)?;
    let mut len = BLOCK;
    loop {
        let slot = slots.take().ok_or(io::ErrorKind::OutOfMemory)?;
        let read = Operation::Read { file: file.clone(), offset: geometry.offset_of(address), slot, len: len as usize };
        let (_, slot) = counted.waited(len, || carry_out(medium, read))?;
        let slot = slot.expect("a read has a slot");
        match Header::decode(&slot[..len as usize]) {
            Ok(header) => {
                let is_it = (header.record.tier, header.record.address) == (tier, address);
                return Ok(is_it.then_some(header.record.object_id));
            }
            Err(NotAHeader::Short(bytes)) if bytes > len && bytes <= SLOT_BYTES as u64 => {
                len = bytes.next_multiple_of(BLOCK);
            }
            Err(_) => return Ok(None),
        }
    }
}

/// Whether a disk, or a process that is short of something, may answer otherwise later.
pub(crate) fn is_for_now(error: &io::Error) -> bool {
    let is_short = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::EAGAIN | libc::EINTR));
    is_short
        || matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::OutOfMemory | io::ErrorKind::NotConnected)
}

fn walk(
    read: impl Fn(u64, &mut Vec<u8>) -> io::Result<()>,
    (tier, geometry): (TierUuid, Geometry),
    (number, bytes): (FileNumber, u64),
) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut window = Vec::new();
    let (mut window_at, mut at) = (0, 0);
    // As far as a window that could not be read: block by block, without those that cannot.
    let mut by_block_until = 0;
    // No record begins beyond the first number.
    while at < geometry.file_bytes().min(bytes) {
        if at < window_at || at + BLOCK > window_at + window.len() as u64 {
            let most = if at < by_block_until { BLOCK } else { WINDOW };
            (window_at, window) = (at, vec![0; (bytes - at).min(most) as usize]);
            match read(window_at, &mut window) {
                Ok(()) => {}
                Err(error) if is_for_now(&error) => return Err(error),
                Err(_) if most > BLOCK => {
                    (window, by_block_until) = (Vec::new(), at + most);
                    continue;
                }
                Err(error) => {
                    tracing::debug!(file = number.0, at, %error, "a block cannot be read: no record begins there");
                    at += BLOCK;
                    continue;
                }
            }
        }
        let mut found = Header::decode(&window[(at - window_at) as usize..]);
        let long;
        if let Err(NotAHeader::Short(header_bytes)) = found
            && header_bytes <= SLOT_BYTES as u64
            && at + header_bytes <= bytes
        {
            let mut whole = vec![0; header_bytes.next_multiple_of(BLOCK) as usize];
            match read(at, &mut whole) {
                Err(error) if is_for_now(&error) => return Err(error),
                // No header is all zeros.
                Err(_) => whole.fill(0),
                Ok(()) => {}
            }
            long = whole;
            found = Header::decode(&long);
        }
        let address = geometry.address(number, at).expect("the file has it");
        match found {
            Ok(header) if (header.record.tier, header.record.address) == (tier, address) => {
                let record = header.record;
                entries.push(Entry { address, rid: record.rid, size: record.size, key: record.key.to_vec() });
                at += header.layout().record_bytes;
            }
            _ => at += BLOCK,
        }
    }
    Ok(entries)
}
