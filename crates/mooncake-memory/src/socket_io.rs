//! Bytes between sockets and memory, without a copy of ours: the kernel takes
//! them from, and puts them to, where they belong.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::caller::piece::{Destination, Source};
use crate::error::CopyError;
use crate::segment::mapping::Mapping;
use mooncake_os::forked;

/// Most ranges in one call.
const RANGES_MAX: usize = 64;

/// Most bytes in one call: the kernel moves no more, and refuses to begin where a length is no `isize`.
const CALL_BYTES_MAX: u64 = 0x7fff_f000;

/// One `sendmsg` of `header` followed by the pieces, without the first `skip`
/// bytes of the two together, and at most `max` bytes. Memory that is not there
/// is `EFAULT`, never a signal. Returns the bytes sent; 0 if nothing is left.
pub fn send_sources(
    socket: BorrowedFd<'_>,
    header: &[u8],
    pieces: &[Source<'_>],
    skip: u64,
    max: u64,
) -> io::Result<usize> {
    refuse_forked()?;
    let mut ranges = Ranges::new(skip, max);
    ranges.push(header.as_ptr(), header.len());
    for piece in pieces {
        if ranges.is_full() {
            break;
        }
        ranges.push(piece.ptr, piece.len);
    }
    ranges.send(socket)
}

/// One `recvmsg` into the pieces from byte `skip` on, at most `max` bytes. 0 =
/// end of stream, or nothing to fill. Memory that is not there is `EFAULT`.
pub fn recv_destinations(
    socket: BorrowedFd<'_>,
    pieces: &mut [Destination<'_>],
    skip: u64,
    max: u64,
) -> io::Result<usize> {
    refuse_forked()?;
    let mut ranges = Ranges::new(skip, max);
    for piece in pieces {
        if ranges.is_full() {
            break;
        }
        ranges.push(piece.ptr, piece.len);
    }
    ranges.recv(socket, 0)
}

impl Mapping {
    /// One `sendmsg` of `header` followed by bytes of the segment, without the
    /// first `skip` bytes of the two together. Returns the bytes sent; 0 if
    /// nothing is left. The stamps are to be checked after the last of them.
    pub fn send_to(
        &self,
        socket: BorrowedFd<'_>,
        header: &[u8],
        offset: u64,
        len: u64,
        skip: u64,
    ) -> io::Result<usize> {
        let ptr = self.bytes_at(offset, len).map_err(into_io)?;
        let mut ranges = Ranges::new(skip, u64::MAX);
        ranges.push(header.as_ptr(), header.len());
        ranges.push(ptr, len as usize);
        ranges.send(socket)
    }

    /// One `recvmsg` into bytes of the segment. 0 = end of stream, or `len` is 0. Where nothing has come it waits as
    /// long as the socket does, or fails at once unless it `may_wait`.
    /// The extent is to be stamped before the first of them.
    pub fn recv_from(&self, socket: BorrowedFd<'_>, offset: u64, len: u64, may_wait: bool) -> io::Result<usize> {
        if !self.is_writable() {
            return Err(into_io(CopyError::ReadOnly));
        }
        let ptr = self.bytes_at(offset, len).map_err(into_io)?;
        let mut ranges = Ranges::new(0, u64::MAX);
        ranges.push(ptr, len as usize);
        ranges.recv(socket, if may_wait { 0 } else { libc::MSG_DONTWAIT })
    }
}

/// Ranges of one call, gathered from a concatenation.
pub(crate) struct Ranges {
    list: [libc::iovec; RANGES_MAX],
    used: usize,
    skip: u64,
    left: u64,
}

impl Ranges {
    pub(crate) fn new(skip: u64, max: u64) -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { list: [none; RANGES_MAX], used: 0, skip, left: max.min(CALL_BYTES_MAX) }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.used == RANGES_MAX || self.left == 0
    }

    pub(crate) fn push(&mut self, ptr: *const u8, len: usize) {
        if self.skip >= len as u64 {
            self.skip -= len as u64;
            return;
        }
        let skip = std::mem::take(&mut self.skip) as usize;
        let len = self.left.min((len - skip) as u64) as usize;
        if len > 0 && !self.is_full() {
            let iov_base = ptr.wrapping_add(skip).cast_mut().cast();
            self.list[self.used] = libc::iovec { iov_base, iov_len: len };
            self.used += 1;
            self.left -= len as u64;
        }
    }

    pub(crate) fn list(&self) -> &[libc::iovec] {
        &self.list[..self.used]
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.list().iter().map(|range| range.iov_len as u64).sum()
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: plain numbers and pointers, for which zeros are "none".
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.list.as_mut_ptr();
        message.msg_iovlen = self.used as _;
        message
    }

    fn send(mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        if self.used == 0 {
            return Ok(0);
        }
        let message = self.message();
        // SAFETY: the kernel only reads the ranges, and answers EFAULT for ranges that are not there.
        result(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) })
    }

    fn recv(mut self, socket: BorrowedFd<'_>, flags: libc::c_int) -> io::Result<usize> {
        if self.used == 0 {
            return Ok(0);
        }
        let mut message = self.message();
        // SAFETY: the ranges are exclusively borrowed destinations, a segment's bytes, or memory that the maker of a
        // `ForeignRange` gave away; the kernel answers EFAULT for ranges that are not there.
        result(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC | flags) })
    }
}

fn result(rc: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(rc).map_err(|_| io::Error::last_os_error())
}

pub(crate) fn refuse_forked() -> io::Result<()> {
    if forked() { Err(into_io(CopyError::Forked)) } else { Ok(()) }
}

fn into_io(error: CopyError) -> io::Error {
    let kind = match error {
        CopyError::Forked | CopyError::ReadOnly => io::ErrorKind::PermissionDenied,
        CopyError::Populate { .. } => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::InvalidInput,
    };
    io::Error::new(kind, error)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Where these lengths cut something.
    fn cut<'a>(mut bytes: &'a [u8], lens: &[usize]) -> Vec<&'a [u8]> {
        lens.iter().map(|len| bytes.split_off(..*len).unwrap()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn pieces_of_any_lengths_arrive_whole_and_in_order_in_pieces_of_any_others(
            header in 0_usize..70,
            ours in vec(prop_oneof![Just(0), 1..40_usize], 0..150),
            // So many pieces fit into a socket that nobody reads from meanwhile.
            most in 60_u64..3000,
            theirs in vec(prop_oneof![Just(0), 1..90_usize], 150),
        ) {
            let total = ours.iter().sum::<usize>();
            let bytes: Vec<u8> = (0..header + total).map(|at| ((at * 7) >> 2) as u8).collect();
            let (header, body) = bytes.split_at(header);
            let pieces: Vec<Source<'_>> = cut(body, &ours).into_iter().map(Source::new).collect();
            let (out, into) = UnixStream::pair().unwrap();
            let mut sent = 0;
            while (sent as usize) < bytes.len() {
                let count = send_sources(out.as_fd(), header, &pieces, sent, most).unwrap() as u64;
                prop_assert!(count > 0 && count <= most, "{} of {}", count, most);
                sent += count;
            }
            prop_assert_eq!(send_sources(out.as_fd(), header, &pieces, sent, most).unwrap(), 0, "nothing is left");
            drop(out);

            let room: usize = theirs.iter().sum();
            let mut found = vec![0; room];
            let mut rest = &mut found[..];
            let mut destinations: Vec<Destination<'_>> =
                theirs.iter().map(|len| Destination::new(rest.split_off_mut(..*len).unwrap())).collect();
            let (mut got, expected) = (0, bytes.len().min(room));
            while (got as usize) < expected {
                let count = recv_destinations(into.as_fd(), &mut destinations, got, most).unwrap() as u64;
                prop_assert!(count > 0 && count <= most);
                got += count;
            }
            prop_assert_eq!(recv_destinations(into.as_fd(), &mut destinations, got, most).unwrap(), 0);
            prop_assert_eq!(&found[..expected], &bytes[..expected]);
            prop_assert!(found[expected..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn what_has_no_room_takes_nothing_off_a_socket_and_what_has_no_bytes_waits_for_none() {
        let (out, into) = UnixStream::pair().unwrap();
        send_sources(out.as_fd(), b"abc", &[], 0, 100).unwrap();
        let mut none = [];
        let (mut empty, mut full) = (Destination::new(&mut none), [0; 4]);
        assert_eq!(recv_destinations(into.as_fd(), &mut [], 0, 100).unwrap(), 0);
        assert_eq!(recv_destinations(into.as_fd(), std::slice::from_mut(&mut empty), 0, 100).unwrap(), 0);
        assert_eq!(recv_destinations(into.as_fd(), &mut [Destination::new(&mut full)], 0, 0).unwrap(), 0);
        assert_eq!(recv_destinations(into.as_fd(), &mut [Destination::new(&mut full)], 4, 9).unwrap(), 0);
        assert_eq!(recv_destinations(into.as_fd(), &mut [Destination::new(&mut full)], 1, 9).unwrap(), 3);
        assert_eq!(&full, b"\0abc");
    }
}
