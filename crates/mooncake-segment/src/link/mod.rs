//! A peer's side: links to segments, by the best path there is.

mod connector;
#[cfg(test)]
pub(crate) mod fixture;
mod idle_lanes;
mod links;
mod networks;
mod options;
mod pool;
mod record_files;
mod record_lanes;
mod shared_memory;
mod tcp_lane;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mooncake_ids::{Rid, SegmentUuid};
use mooncake_memory::{
    CopyError, Destination, Mapping, ReadError, Source, Verify, crc_of_destinations, crc_of_sources,
    total_of_destinations, total_of_sources,
};
use mooncake_os::{Deadline, forked};

use crate::epoch::Epoch;
use crate::error::{TransferError, WriteError};
use crate::gate::Gate;
use crate::local::{Insider, Served};
use crate::machine::{Denied, LeastEpoch};
use crate::protocol::frames::Status;

pub use links::Links;
pub use options::{LinkOptions, LinkReport, Path, Paths, SegmentAddress};
pub use record_files::RecordFiles;
pub use record_lanes::RecordLanes;
pub use shared_memory::view::View;
pub use tcp_lane::RecordRead;

use networks::Networks;
use shared_memory::Attachment;
use tcp_lane::Span;

/// A way to one segment.
#[derive(Debug)]
pub struct Link {
    uuid: SegmentUuid,
    bytes: u64,
    name: String,
    segment: Arc<str>,
    /// Where its owner gave the memory when this was made.
    unix_socket: Box<str>,
    reason: String,
    kind: Kind,
    forgotten: AtomicBool,
    least_epoch: Arc<LeastEpoch>,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

#[derive(Debug)]
enum Kind {
    Local(Arc<Served>, Arc<Insider>),
    Shared(Arc<Attachment>),
    Tcp(Box<Networks>),
}

impl Link {
    fn new(address: &SegmentAddress, kind: Kind, reason: String, least_epoch: Arc<LeastEpoch>) -> Link {
        Link {
            uuid: address.uuid,
            bytes: address.bytes,
            name: address.name.clone(),
            segment: address.display_name(),
            unix_socket: address.unix_socket.as_str().into(),
            reason,
            kind,
            forgotten: AtomicBool::new(false),
            least_epoch,
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
        }
    }

    /// The path in use.
    pub fn path(&self) -> Path {
        match self.kind {
            Kind::Local(..) => Path::Local,
            Kind::Shared(_) => Path::SharedMemory,
            Kind::Tcp(_) => Path::Tcp,
        }
    }

    /// Why that path, and why not a better one.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether the owner of mapped memory waits for the process that maps it over this link, before space is given out
    /// there of which a master in this epoch, the one of the link's store, does not know that it is viewed.
    ///
    /// It does if this is the epoch that the owner obeyed when the link was made, or that it has asked for since:
    /// before it obeys another one it asks this process, too. In any other one, of a higher number too, another master
    /// may be that does not know the store's pins, and the owner does not wait for a newcomer's word about what it
    /// obeys already. Where one of the two ids is not known the numbers decide.
    pub fn is_waited_for_in(&self, epoch: Epoch) -> bool {
        match &self.kind {
            Kind::Local(_, insider) => insider.is_waited_for_in(epoch),
            Kind::Shared(attachment) => attachment.is_waited_for_in(epoch),
            // Nothing is mapped.
            Kind::Tcp(_) => true,
        }
    }

    /// Segment that it leads to.
    pub fn uuid(&self) -> SegmentUuid {
        self.uuid
    }

    /// Path, reason and traffic.
    pub fn report(&self) -> LinkReport {
        let networks = match &self.kind {
            Kind::Tcp(networks) => networks.summary(),
            Kind::Local(..) | Kind::Shared(_) => None,
        };
        LinkReport {
            uuid: self.uuid,
            name: self.name.clone(),
            path: self.path(),
            reason: std::iter::once(self.reason.clone()).chain(networks).collect::<Vec<_>>().join("; "),
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            bytes_written: self.bytes_written.load(Ordering::Relaxed),
        }
    }

    /// Writes the pieces, one after another, into a placement's extent (or a
    /// part of it), stamping it first. Gives the CRC-32C of what was written.
    pub fn write(
        &self,
        rid: Rid,
        offset: u64,
        pieces: &[Source<'_>],
        deadline: &Deadline<'_>,
    ) -> Result<u32, WriteError> {
        self.write_part(rid, offset, pieces, total_of_sources(pieces), deadline)
    }

    /// [`Link::write`] of a part of a placement of `whole` bytes.
    pub fn write_part(
        &self,
        rid: Rid,
        offset: u64,
        pieces: &[Source<'_>],
        whole: u64,
        deadline: &Deadline<'_>,
    ) -> Result<u32, WriteError> {
        let span = Span { rid, offset, len: total_of_sources(pieces) };
        let settled = |error| WriteError { error, settled: true };
        self.check(span).map_err(settled)?;
        self.least_epoch.check(rid).map_err(|denied| settled(self.denied(rid, denied)))?;
        let crc = match &self.kind {
            Kind::Local(served, _) => {
                self.copy_in(&served.gate, served.memory.mapping(), span, pieces, whole).map_err(settled)?
            }
            Kind::Shared(attachment) => {
                let mapping = attachment.writable(deadline).map_err(settled)?;
                self.copy_in(attachment.gate(), &mapping, span, pieces, whole).map_err(settled)?
            }
            Kind::Tcp(networks) => {
                let outcome = networks.write(span, pieces, deadline);
                let named = |error| named(error, || crc_of_sources(0, pieces, 0, span.len).err());
                outcome.result.map_err(|error| WriteError { error: named(error), settled: outcome.settled })?
            }
        };
        self.bytes_written.fetch_add(span.len, Ordering::Relaxed);
        Ok(crc)
    }

    /// Reads a placement's bytes from `offset`, which counts in the segment, on into the pieces, one after
    /// another. With `crc` the whole of an object is verified; without, the
    /// stamps alone vouch for it. On an error the pieces' contents are worthless.
    pub fn read(
        &self,
        rid: Rid,
        offset: u64,
        pieces: &mut [Destination<'_>],
        crc: Option<u32>,
        deadline: &Deadline<'_>,
    ) -> Result<(), TransferError> {
        let span = Span { rid, offset, len: total_of_destinations(pieces) };
        self.check(span)?;
        let mapping = match &self.kind {
            Kind::Local(served, _) => served.memory.mapping(),
            Kind::Shared(attachment) => attachment.readable(),
            Kind::Tcp(networks) => {
                self.read_tcp(networks, span, pieces, crc, deadline)?;
                self.bytes_read.fetch_add(span.len, Ordering::Relaxed);
                return Ok(());
            }
        };
        let verify = crc.map_or(Verify::Skip, Verify::Crc);
        mapping.read(rid, offset, pieces, verify).map_err(|e| self.unread(e))?;
        self.bytes_read.fetch_add(span.len, Ordering::Relaxed);
        Ok(())
    }

    /// A view of a pinned placement's bytes, verified in place; `None` where
    /// the memory is not mapped here (TCP).
    pub fn view(&self, rid: Rid, offset: u64, len: u64, crc: Option<u32>) -> Result<Option<View>, TransferError> {
        self.check(Span { rid, offset, len })?;
        let verify = crc.map_or(Verify::Skip, Verify::Crc);
        let view = match &self.kind {
            Kind::Local(served, insider) => {
                let mapping = served.memory.view_mapping();
                let mapping =
                    mapping.map_err(|source| TransferError::Map { segment: self.segment.to_string(), source })?;
                mapping.view(rid, offset, len, verify).map(|bytes| View::local(insider, bytes))
            }
            Kind::Shared(attachment) => View::shared(attachment, rid, offset, len, verify),
            Kind::Tcp(_) => return Ok(None),
        };
        let view = view.map_err(|e| self.unread(e))?;
        self.bytes_read.fetch_add(len, Ordering::Relaxed);
        Ok(Some(view))
    }

    /// Whether a new link should be made instead.
    fn is_over(&self) -> bool {
        match &self.kind {
            Kind::Local(served, _) => served.is_removed(),
            Kind::Shared(attachment) => attachment.is_over(),
            Kind::Tcp(networks) => networks.is_refused(),
        }
    }

    /// Whether its lanes lead to where the owner was before: what kept the memory from being mapped may have been that.
    fn is_elsewhere(&self, address: &SegmentAddress) -> bool {
        matches!(&self.kind, Kind::Tcp(_)) && *self.unix_socket != *address.unix_socket
    }

    /// Closes lanes that no call has used for a while.
    fn close_idle(&self) {
        if let Kind::Tcp(networks) = &self.kind {
            networks.close_idle();
        }
    }

    fn forget(&self) {
        self.forgotten.store(true, Ordering::Release);
        if let Kind::Tcp(networks) = &self.kind {
            networks.close();
        }
    }

    fn check(&self, span: Span) -> Result<(), TransferError> {
        if forked() {
            return Err(TransferError::Forked);
        }
        let removed = matches!(&self.kind, Kind::Local(served, _) if served.is_removed());
        if removed || self.forgotten.load(Ordering::Acquire) {
            return Err(TransferError::Gone { segment: self.segment.to_string() });
        }
        let Span { rid, offset, len } = span;
        if !rid.is_placement() {
            return Err(TransferError::NotAPlacement { rid: rid.0 });
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(CopyError::OutOfRange { offset, len, bytes: self.bytes }.into()),
        }
    }

    /// A write by this thread, through a mapping.
    fn copy_in(
        &self,
        gate: &Arc<Gate>,
        mapping: &Mapping,
        span: Span,
        pieces: &[Source<'_>],
        whole: u64,
    ) -> Result<u32, TransferError> {
        let Span { rid, offset, len } = span;
        let _admitted = gate.admit(mapping, rid, offset, len, None).map_err(|denied| self.denied(rid, denied))?;
        Ok(mapping.write_part(rid, offset, pieces, whole)?)
    }

    fn read_tcp(
        &self,
        networks: &Networks,
        span: Span,
        pieces: &mut [Destination<'_>],
        crc: Option<u32>,
        deadline: &Deadline<'_>,
    ) -> Result<(), TransferError> {
        let read = networks.read(span, pieces, crc.is_some(), deadline);
        let actual = read.map_err(|error| named(error, || crc_of_destinations(0, pieces, 0, span.len).err()))?;
        match crc {
            Some(expected) if expected != actual => {
                Err(TransferError::Checksum { segment: self.segment.to_string(), rid: span.rid.0, expected, actual })
            }
            _ => Ok(()),
        }
    }

    fn denied(&self, rid: Rid, denied: Denied) -> TransferError {
        let segment = self.segment.to_string();
        match denied {
            Denied::Superseded { found } => {
                TransferError::Superseded { segment, rid: rid.0, reason: format!("the extent carries {found:#x}") }
            }
            Denied::OldEpoch { least } => {
                TransferError::Superseded { segment, rid: rid.0, reason: format!("epoch {least} has begun") }
            }
            Denied::Busy => TransferError::Refused { segment, status: Status::Busy },
            Denied::Closed => TransferError::Gone { segment },
            Denied::Copy(e) => TransferError::Copy(e),
        }
    }

    fn unread(&self, error: ReadError) -> TransferError {
        let segment = self.segment.to_string();
        match error {
            ReadError::Stale { rid, .. } => TransferError::Stale { segment, rid },
            ReadError::Checksum { rid, expected, actual } => TransferError::Checksum { segment, rid, expected, actual },
            ReadError::Copy(e) => TransferError::Copy(e),
        }
    }
}

/// A kernel that moves bytes for a socket does not say which of the caller's pieces it could not touch: a look at them
/// does.
fn named(error: TransferError, look: impl FnOnce() -> Option<CopyError>) -> TransferError {
    match error {
        TransferError::CallerMemory { .. } => look().map_or(error, TransferError::Copy),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::{Duration, Instant};

    use super::fixture::{Quiet, mapping, owner};
    use super::*;
    use crate::server::{Fence, ServerEvents};

    struct Report(Sender<Rid>);

    impl ServerEvents for Report {
        fn fenced(&self, _: SegmentUuid, rid: Rid) {
            let _ = self.0.send(rid);
        }
        fn epoch_taken(&self, _: u16, _: SegmentUuid) {}
    }

    #[test]
    fn a_mapped_writer_answers_a_fence_after_its_last_byte_and_tombstones_again() {
        let (sender, fenced) = channel();
        let (server, memory, address) = owner(1 << 20, Report(sender));
        let links = Links::new(mapping(), Box::new(Quiet)).unwrap();
        let deadline = Deadline::at(Instant::now() + Duration::from_secs(5));
        let link = links.link(&address, &deadline).unwrap();
        let Kind::Shared(attachment) = &link.kind else { panic!("{}", link.reason()) };
        let mapping = attachment.writable(&deadline).unwrap();
        let rid = Rid::new(1, 1);
        let writing = attachment.gate().admit(&mapping, rid, 0, 4096, None).unwrap();
        let fence = Fence { uuid: memory.uuid(), rid, offset: 0, len: 4096, writer: 2, writer_done: false };
        assert!(!server.fence(fence));
        assert!(fenced.recv_timeout(Duration::from_millis(300)).is_err(), "it is still copying");
        // Admitted before the fence, stamps after it.
        mapping.write(rid, 0, &[Source::new(&[1; 4096])]).unwrap();
        drop(writing);
        assert_eq!(fenced.recv_timeout(Duration::from_secs(2)), Ok(rid));
        assert!(memory.mapping().check_stamps(Rid(rid.tombstone()), 0, 4096).unwrap());
        let e = link.write(rid, 0, &[Source::new(b"late")], &deadline).unwrap_err();
        assert!(e.settled && matches!(e.error, TransferError::Superseded { .. }), "{e}");
    }
}
