//! The control server: accepts connections by TCP and by an abstract Unix
//! socket, and bounds what strangers can hold.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mooncake_core::SessionId;
use tokio::net::{TcpListener, UnixListener};
use tokio::time::timeout;

use crate::connection::{Connection, Ended, Leaving, Stream};
use crate::hello::{self, Role, Via};
use crate::peer_log::Peer;
use crate::shared::{Entry, Shared};
use crate::{anchor, call};

/// For preface and hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections before their hello.
const STRANGERS_MAX: usize = 2048;

/// Connections in all.
const CONNECTIONS_MAX: usize = 16_384;

/// After a failed accept: most likely descriptors ran out, which time mends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Accepts TCP connections for ever.
pub async fn accept_tcp(shared: Arc<Shared>, listener: TcpListener, strangers: Arc<AtomicUsize>) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let peer = Peer::Ip(address.ip());
                if let Err(error) = stream.set_nodelay(true).and_then(|()| keep_alive(&stream)) {
                    tracing::debug!(%peer, %error, "socket options");
                }
                start(&shared, &strangers, stream, peer, Via::Tcp);
            }
            Err(error) => pause(&error).await,
        }
    }
}

/// Accepts connections of the same user on this host for ever.
pub async fn accept_unix(shared: Arc<Shared>, listener: UnixListener, strangers: Arc<AtomicUsize>) {
    let own = rustix::process::geteuid().as_raw();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match mooncake_memory::peer_credentials(&stream) {
                Ok(credentials) if credentials.is_own_user() => {
                    let peer = Peer::Process(credentials.pid);
                    let via = Via::Unix(mooncake_memory::peer_pidfd(&stream).ok());
                    start(&shared, &strangers, stream, peer, via);
                }
                Ok(credentials) => {
                    let peer = Peer::Process(credentials.pid);
                    shared.peers.warn(peer, || {
                        format!("user {} may not use the Unix socket of user {own}; use TCP", credentials.uid)
                    });
                }
                Err(error) => tracing::debug!(%error, "peer credentials"),
            },
            Err(error) => pause(&error).await,
        }
    }
}

fn start<S: Stream>(shared: &Arc<Shared>, strangers: &Arc<AtomicUsize>, stream: S, peer: Peer, via: Via) {
    if strangers.load(Ordering::Relaxed) >= STRANGERS_MAX || shared.connections.len() >= CONNECTIONS_MAX {
        shared.peers.warn(peer, || "too many connections; this one is closed".to_owned());
        return;
    }
    let stranger = Counted::new(strangers.clone());
    let entry = shared.enter_connection();
    let number = entry.number();
    let task = tokio::spawn(serve(shared.clone(), stream, peer, via, stranger, entry));
    shared.connections.set_first_task(number, task.abort_handle());
}

async fn serve<S: Stream>(shared: Arc<Shared>, stream: S, peer: Peer, via: Via, stranger: Counted, entry: Entry) {
    match converse(&shared, stream, via, stranger, entry.number()).await {
        Ok(Some((session, connection))) => hand_over(&shared, session, connection, peer, entry),
        Ok(None) => {}
        Err(ended) => told(&shared, peer, ended),
    }
}

/// Calls are answered in threads of their own.
fn hand_over<S: Stream>(shared: &Arc<Shared>, session: SessionId, leaving: Leaving<S>, peer: Peer, entry: Entry) {
    let number = entry.number();
    let task = {
        let shared = shared.clone();
        async move {
            let _entry = entry;
            let ended = match leaving.arrive() {
                Ok(mut connection) => call::serve(&shared, session, &mut connection).await,
                Err(error) => Err(error.into()),
            };
            if let Err(ended) = ended {
                told(&shared, peer, ended);
            }
        }
    };
    shared.connections.set_task(number, shared.call_loops.spawn(task));
}

fn told(shared: &Shared, peer: Peer, ended: Ended) {
    match ended {
        Ended::Closed | Ended::Stopping(_) => {}
        Ended::Garbage(reason) => shared.peers.warn(peer, || format!("connection closed: {reason}")),
        error => tracing::debug!(%peer, %error, "connection ended"),
    }
}

/// A connection's life up to its calls, if it is for such.
async fn converse<S: Stream>(
    shared: &Arc<Shared>,
    stream: S,
    via: Via,
    stranger: Counted,
    number: u64,
) -> Result<Option<(SessionId, Leaving<S>)>, Ended> {
    let mut connection = Connection::new(stream);
    let hello = timeout(HELLO_TIMEOUT, hello::read(&mut connection))
        .await
        .map_err(|_| Ended::Garbage(format!("no hello within {HELLO_TIMEOUT:?}")))??;
    let (reply, role) = hello::answer(shared, hello, via).await?;
    connection.send(&reply).await?;
    drop(stranger);
    match role {
        Role::Refused => Ok(None),
        Role::Anchor(anchor) => {
            shared.connections.belongs_to(number, anchor.session);
            anchor::serve(shared, anchor, connection).await.map(|()| None)
        }
        Role::Call(session) => {
            shared.connections.belongs_to(number, session);
            Ok(Some((session, connection.leave()?)))
        }
    }
}

/// Finds hosts that vanished without a word under connections that only wait.
fn keep_alive(stream: &tokio::net::TcpStream) -> io::Result<()> {
    let options = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    socket2::SockRef::from(stream).set_tcp_keepalive(&options)
}

/// Between two lines about the same trouble.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// It is tried again at once, and may go on failing for long.
fn say_now_and_then(error: &io::Error) {
    static SAID: parking_lot::Mutex<Option<Instant>> = parking_lot::Mutex::new(None);
    let mut said = SAID.lock();
    if said.is_none_or(|said| said.elapsed() > SAY_AGAIN) {
        *said = Some(Instant::now());
        tracing::warn!(%error, "accept failed; new clients wait until it works again");
    }
}

async fn pause(error: &io::Error) {
    say_now_and_then(error);
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// One of a counted number of things.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(counter: Arc<AtomicUsize>) -> Counted {
        counter.fetch_add(1, Ordering::Relaxed);
        Counted(counter)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
