//! Bytes that go to a socket by reference: the pages that they lie in are spliced
//! into it, and only the receiver copies.
//!
//! Within a host that is one copy instead of two. The receiver copies later than the sender's call ends, so the sender
//! must learn from the receiver when it is done. Until then the sender leaves the bytes as they are, or expects that
//! others arrive. Memory that is unmapped meanwhile stays the kernel's until then.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use parking_lot::Mutex;

use crate::caller::piece::{Source, total_of_sources};
use crate::socket_io::{Ranges, refuse_forked};
use mooncake_os::NoSignal;
use mooncake_os::{Guarded, forked};

/// Of fewer bytes both ends copy at the same time, and that is quicker.
const SPLICED_BYTES_MIN: u64 = 4 << 20;

/// Pieces smaller than this on average are copied: the kernel keeps a reference for each.
const SPLICED_PIECE_MIN: u64 = 16 << 10;

/// Bytes of pages that a pipe has room for. Few, so that the receiver begins soon; each time costs two calls.
const PIPE_ROOM: usize = 256 << 10;

/// A pipe with less room costs more calls than a copy saves. The kernel makes such pipes for a user that has too many.
const PIPE_ROOM_MIN: usize = 128 << 10;

/// Pipes that are kept for the next ones.
const IDLE_MAX: usize = 8;

static IDLE: Mutex<Vec<Pipe>> = Mutex::new(Vec::new());

/// The way of one request's bytes: pages of memory are put into a pipe, and go from there to the socket.
///
/// A peer that hangs up is an error like any other here, and no `SIGPIPE`. The kernel sends that to the thread that
/// splices, so a splice stays on the thread that began it.
#[derive(Debug)]
pub struct Splice {
    /// Taken out when the splice ends.
    pipe: Option<Pipe>,
    /// Bytes whose pages are in the pipe.
    held: usize,
    _signal: NoSignal,
}

#[derive(Debug)]
struct Pipe {
    out: Guarded<OwnedFd>,
    into: Guarded<OwnedFd>,
}

impl Splice {
    /// Begins. `None` where this process has too many descriptors or pipes, or is a forked child: copies always work.
    fn begin() -> Option<Splice> {
        if forked() {
            return None;
        }
        let kept = IDLE.lock().pop();
        let pipe = kept.or_else(Pipe::new)?;
        Some(Splice { pipe: Some(pipe), held: 0, _signal: NoSignal::new() })
    }

    /// Begins if that is worth it for these pieces. Stand-ins for a device's memory are used again before the receiver
    /// has copied, so pieces of a device are not spliced.
    pub fn of_sources(pieces: &[Source<'_>]) -> Option<Splice> {
        let total = total_of_sources(pieces);
        let large = total >= SPLICED_BYTES_MIN && total / pieces.len() as u64 >= SPLICED_PIECE_MIN;
        if large && !pieces.iter().any(Source::is_on_device) { Splice::begin() } else { None }
    }

    /// Hands pages of the pieces to the socket, from byte `skip` on; `more` bytes follow on the socket behind them.
    /// Returns the bytes that the socket has taken. It waits as long as the socket does: after `WouldBlock` and
    /// `Interrupted` it may be called again in the same way. Any other error says that the bytes from `skip` on are to
    /// be copied instead: it is the kernel that does not splice them, or the socket that is broken.
    pub fn send_sources(
        &mut self,
        socket: BorrowedFd<'_>,
        pieces: &[Source<'_>],
        skip: u64,
        more: bool,
    ) -> io::Result<usize> {
        let mut ranges = Ranges::new(skip, u64::MAX);
        for piece in pieces {
            if ranges.is_full() {
                break;
            }
            ranges.push(piece.ptr, piece.len);
        }
        let more = more || skip + ranges.bytes() < total_of_sources(pieces);
        self.send(socket, &ranges, more)
    }

    fn send(&mut self, socket: BorrowedFd<'_>, ranges: &Ranges, more: bool) -> io::Result<usize> {
        refuse_forked()?;
        let pipe = self.pipe.as_ref().expect("there until the end");
        if self.held == 0 {
            self.held = pipe.fill(ranges)?;
        }
        let more = more || (self.held as u64) < ranges.bytes();
        let count = pipe.drain(socket, self.held, more)?;
        self.held -= count;
        Ok(count)
    }
}

impl Drop for Splice {
    fn drop(&mut self) {
        let mut idle = IDLE.lock();
        if self.held == 0 && idle.len() < IDLE_MAX {
            idle.extend(self.pipe.take());
        }
    }
}

impl Pipe {
    fn new() -> Option<Pipe> {
        let mut ends = [0; 2];
        // SAFETY: there is room for both numbers.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return None;
        }
        // SAFETY: fresh descriptors that nothing else owns.
        let [out, into] = ends.map(|end| Guarded::new(unsafe { OwnedFd::from_raw_fd(end) }));
        // SAFETY: a number for a descriptor of ours. Refused, it has the room that it was made with.
        let room = unsafe {
            libc::fcntl(out.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_ROOM);
            libc::fcntl(out.as_raw_fd(), libc::F_GETPIPE_SZ)
        };
        usize::try_from(room).is_ok_and(|room| room >= PIPE_ROOM_MIN).then_some(Pipe { out, into })
    }

    /// Puts pages into the pipe as far as there is room. Memory that is not there, or is no memory, is `EFAULT`.
    fn fill(&self, ranges: &Ranges) -> io::Result<usize> {
        let list = ranges.list();
        // SAFETY: the kernel reads the ranges' pages, and answers EFAULT for pages that are not there.
        let count =
            unsafe { libc::vmsplice(self.into.as_raw_fd(), list.as_ptr(), list.len(), libc::SPLICE_F_NONBLOCK) };
        match usize::try_from(count) {
            // No page fits into an empty pipe, which cannot be.
            Ok(0) => Err(io::ErrorKind::Unsupported.into()),
            Ok(count) => Ok(count),
            Err(_) => Err(into_io_of_pipe(io::Error::last_os_error())),
        }
    }

    fn drain(&self, socket: BorrowedFd<'_>, len: usize, more: bool) -> io::Result<usize> {
        let flags = if more { libc::SPLICE_F_MORE } else { 0 };
        let none = ptr::null_mut;
        // SAFETY: two descriptors and no memory of ours.
        let count = unsafe { libc::splice(self.out.as_raw_fd(), none(), socket.as_raw_fd(), none(), len, flags) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }
}

/// A pipe that is full is no socket to be waited for.
fn into_io_of_pipe(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::Unsupported.into() } else { error }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;
    use crate::caller::registry::Registry;
    use crate::range::ForeignRange;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (out, listener.accept().unwrap().0)
    }

    #[test]
    fn pieces_that_begin_anywhere_arrive_whole_and_in_order() {
        let bytes: Vec<u8> = (0..6_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 21) as u8).collect();
        let (first, rest) = bytes[3..].split_at((1 << 20) + 17);
        let (second, third) = rest.split_at(5);
        let pieces = [first, second, third].map(Source::new);
        let (out, mut into) = connection();
        let reads = std::thread::spawn(move || {
            let mut found = Vec::new();
            into.read_to_end(&mut found).unwrap();
            found
        });
        let mut splice = Splice::of_sources(&pieces).expect("a pipe");
        let (mut sent, total) = (0, total_of_sources(&pieces));
        while sent < total {
            sent += splice.send_sources(out.as_fd(), &pieces, sent, false).unwrap() as u64;
        }
        drop((splice, out));
        assert!(reads.join().unwrap() == bytes[3..], "other bytes than went");
    }

    #[test]
    fn little_and_small_pieces_are_copied() {
        let bytes = vec![1; SPLICED_BYTES_MIN as usize];
        assert!(Splice::of_sources(&[]).is_none());
        assert!(Splice::of_sources(&[Source::new(&bytes[1..])]).is_none());
        let pieces: Vec<Source<'_>> = bytes.chunks(SPLICED_PIECE_MIN as usize - 1).map(Source::new).collect();
        assert!(Splice::of_sources(&pieces).is_none());
        assert!(Splice::of_sources(&[Source::new(&bytes)]).is_some());
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_and_the_pipe_that_holds_something_is_not_used_again() {
        let (out, _into) = connection();
        // SAFETY: nothing is mapped there.
        let range = unsafe { ForeignRange::new(1 << 12, SPLICED_BYTES_MIN as usize) };
        let nowhere = [Source::foreign(range, &Registry::default()).unwrap()];
        let mut splice = Splice::of_sources(&nowhere).expect("a pipe");
        let e = splice.send_sources(out.as_fd(), &nowhere, 0, false).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::EFAULT));

        let bytes = vec![1; SPLICED_BYTES_MIN as usize];
        let pieces = [Source::new(&bytes)];
        out.shutdown(std::net::Shutdown::Write).unwrap();
        splice.send_sources(out.as_fd(), &pieces, 0, false).unwrap_err();
        assert!(splice.held > 0);
        let used = splice.pipe.as_ref().map(|pipe| pipe.out.as_raw_fd());
        drop(splice);
        assert!(
            IDLE.lock().iter().all(|pipe| Some(pipe.out.as_raw_fd()) != used),
            "its bytes would go to another peer"
        );
    }
}
