//! Mooncake's handshake: one request for each connection, a length, a kind and JSON.
//!
//! A frame is a u64 length (little endian, the kind's byte counted), the kind, and the text. The reply echoes the kind.
//! Old engines send no kind: their first byte is that of the JSON, and it is a connection request.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use mooncake_net::ConnectError;
use mooncake_os::{Deadline, Guarded};
use serde::{Deserialize, Serialize};

use crate::error::EngineError;

pub(crate) const LENGTH_LEN: usize = 8;

/// What a frame is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Queue pairs are to be connected, which TCP has none of.
    Connection = 0,
    /// The segment document.
    Metadata = 1,
    Notify = 2,
    /// Whether the engine lives.
    Probe = 3,
}

/// A frame of either direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub kind: Kind,
    /// Of an old engine, which sends and expects no kind.
    pub old: bool,
    pub json: Vec<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NotifyBody {
    pub name: String,
    pub notify_msg: String,
}

impl Message {
    pub fn new(kind: Kind, mut json: String) -> Message {
        // As Mooncake's messages end, for peers that read lines.
        json.push('\n');
        Message { kind, old: false, json: json.into_bytes() }
    }

    /// Bytes behind the length, which says so many.
    pub fn len(&self) -> usize {
        self.json.len() + usize::from(!self.old)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LENGTH_LEN + self.len());
        out.extend_from_slice(&(self.len() as u64).to_le_bytes());
        if !self.old {
            out.push(self.kind as u8);
        }
        out.extend_from_slice(&self.json);
        out
    }

    /// What follows the length.
    pub fn decode(mut body: Vec<u8>) -> Option<Message> {
        let kind = match *body.first()? {
            0 => Kind::Connection,
            1 => Kind::Metadata,
            2 => Kind::Notify,
            3 => Kind::Probe,
            0xfe => return None,
            _ => return Some(Message { kind: Kind::Connection, old: true, json: body }),
        };
        body.remove(0);
        Some(Message { kind, old: false, json: body })
    }
}

/// How many bytes are missing of a frame, as far as is known; an error if its length is not allowed.
pub(crate) fn missing(read: &[u8], longest: usize) -> Result<usize, ()> {
    let Some(length) = read.first_chunk::<LENGTH_LEN>() else { return Ok(LENGTH_LEN - read.len()) };
    match usize::try_from(u64::from_le_bytes(*length)) {
        Ok(length) if (1..=longest).contains(&length) => Ok((LENGTH_LEN + length).saturating_sub(read.len())),
        _ => Err(()),
    }
}

/// Asks a peer once; gives the JSON of its reply.
pub(crate) fn ask(
    peer: &str,
    addresses: &[SocketAddr],
    message: &Message,
    connect_timeout: Duration,
    deadline: &Deadline<'_>,
    longest: usize,
) -> Result<Vec<u8>, EngineError> {
    let stream = connect(peer, addresses, connect_timeout, deadline)?;
    let began = Instant::now();
    let failed = |what| {
        move |source: io::Error| match source.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                EngineError::Timeout { peer: peer.to_owned(), what, waited: began.elapsed() }
            }
            ErrorKind::Interrupted => EngineError::Interrupted,
            _ => EngineError::Socket { peer: peer.to_owned(), what, source },
        }
    };
    send_all(&stream, &message.encode(), deadline).map_err(failed("send a handshake"))?;
    let mut length = [0; LENGTH_LEN];
    read_all(&stream, &mut length, deadline).map_err(failed("wait for a handshake's answer"))?;
    let length = u64::from_le_bytes(length);
    if length == 0 || length > longest as u64 {
        return Err(EngineError::malformed(peer, format!("its answer has {length} bytes, the limit is {longest}")));
    }
    let mut body = vec![0; length as usize];
    read_all(&stream, &mut body, deadline).map_err(failed("receive a handshake's answer"))?;
    match Message::decode(body) {
        Some(reply) if reply.kind == message.kind && !reply.old => Ok(reply.json),
        _ => Err(EngineError::malformed(peer, "it answers another question than it was asked")),
    }
}

/// `write_all` until the deadline, which a peer cannot prolong by reading a few bytes now and then. Fails as
/// interrupted if its caller's hook says so.
fn send_all(mut stream: &TcpStream, bytes: &[u8], deadline: &Deadline<'_>) -> io::Result<()> {
    move_all(bytes.len(), deadline, |done, slice| {
        stream.set_write_timeout(Some(slice))?;
        stream.write(&bytes[done..])
    })
}

/// `read_exact`, likewise.
fn read_all(mut stream: &TcpStream, into: &mut [u8], deadline: &Deadline<'_>) -> io::Result<()> {
    move_all(into.len(), deadline, |done, slice| {
        stream.set_read_timeout(Some(slice))?;
        stream.read(&mut into[done..])
    })
}

/// Moves so many bytes by steps of at most a slice of time each, which are told how many have moved.
fn move_all(
    bytes: usize,
    deadline: &Deadline<'_>,
    mut step: impl FnMut(usize, Duration) -> io::Result<usize>,
) -> io::Result<()> {
    let mut done = 0;
    while done < bytes {
        let left = deadline.left();
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        if deadline.is_interrupted() {
            return Err(ErrorKind::Interrupted.into());
        }
        match step(done, left.min(Deadline::SLICE)) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(error)
                if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A connection to the first address that answers, each within `timeout`.
pub(crate) fn connect(
    peer: &str,
    addresses: &[SocketAddr],
    timeout: Duration,
    deadline: &Deadline<'_>,
) -> Result<Guarded<TcpStream>, EngineError> {
    connect_from(peer, None, addresses, timeout, deadline)
}

/// The same, from an address of this host.
pub(crate) fn connect_from(
    peer: &str,
    local: Option<IpAddr>,
    addresses: &[SocketAddr],
    timeout: Duration,
    deadline: &Deadline<'_>,
) -> Result<Guarded<TcpStream>, EngineError> {
    mooncake_net::connect_from(local, addresses, timeout, deadline).map_err(|error| match error {
        ConnectError::Interrupted => EngineError::Interrupted,
        ConnectError::Untried => EngineError::Timeout { peer: peer.to_owned(), what: "connecting", waited: timeout },
        ConnectError::Io(source) => EngineError::Socket { peer: peer.to_owned(), what: "connect", source },
    })
}

#[cfg(test)]
mod tests {
    use mooncake_test_support::DeafListener;

    use super::*;

    #[test]
    fn a_connect_without_an_answer_ends_at_its_time_or_at_its_callers_wish() {
        let deaf = DeafListener::start();
        let at = deaf.at();
        let began = Instant::now();
        let wish = || began.elapsed() > Duration::from_millis(300);
        let deadline = Deadline { began, until: began + Duration::from_secs(20), interrupted: &wish };
        let ended = connect("deaf", &[at], Duration::from_secs(10), &deadline);
        assert!(matches!(ended, Err(EngineError::Interrupted)), "{ended:?}");
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());

        let began = Instant::now();
        let deadline = Deadline { began, interrupted: &|| false, ..deadline };
        let ended = connect("deaf", &[at], Duration::from_millis(300), &deadline);
        assert!(matches!(&ended, Err(EngineError::Socket { source, .. }) if source.kind() == ErrorKind::TimedOut));
        assert!(began.elapsed() >= Duration::from_millis(300));
        drop(deaf);
        let ended = connect("gone", &[at], Duration::from_secs(10), &deadline);
        assert!(matches!(&ended, Err(EngineError::Socket { .. })), "{ended:?}");
    }

    #[test]
    fn a_long_message_ends_at_its_time_or_at_its_callers_wish_however_slowly_the_peer_takes_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut drop = [0; 16 << 10];
                    while stream.read(&mut drop).is_ok_and(|count| count > 0) {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                });
            }
        });
        let message = Message::new(Kind::Notify, "x".repeat(64 << 20));
        let ask = |deadline: &Deadline<'_>| ask("slow", &[at], &message, Duration::from_secs(5), deadline, 4096);

        let began = Instant::now();
        let ended = ask(&Deadline::after(Duration::from_millis(500), &|| false));
        assert!(matches!(ended, Err(EngineError::Timeout { .. })), "{ended:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());

        let began = Instant::now();
        let wish = || began.elapsed() > Duration::from_millis(300);
        let ended = ask(&Deadline::after(Duration::from_secs(20), &wish));
        assert!(matches!(ended, Err(EngineError::Interrupted)), "{ended:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }

    #[test]
    fn messages_are_read_as_they_were_written_and_old_ones_too() {
        for kind in [Kind::Connection, Kind::Metadata, Kind::Notify, Kind::Probe] {
            let message = Message::new(kind, "{}".into());
            let raw = message.encode();
            assert_eq!(raw[..9], [4, 0, 0, 0, 0, 0, 0, 0, kind as u8]);
            assert_eq!(Message::decode(raw[8..].to_vec()), Some(message));
        }
        let old = Message::decode(b"{\"local_nic_path\":\"\"}".to_vec()).unwrap();
        assert!(old.old && old.kind == Kind::Connection && old.encode()[8] == b'{');
        assert_eq!(Message::decode(vec![]), None);
        assert_eq!(Message::decode(vec![0xfe, 1]), None);
    }
}
