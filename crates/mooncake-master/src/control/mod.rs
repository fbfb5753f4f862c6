//! The control server: accepts connections by TCP and by an abstract Unix
//! socket, and bounds what strangers can hold.

pub(crate) mod anchor;
pub(crate) mod call;
pub(crate) mod connection;
pub(crate) mod hello;
#[cfg(test)]
pub(crate) mod reply_order;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_ids::SessionId;
use mooncake_net::keep_alive;
use rustix::io::Errno;
use tokio::net::{TcpListener, UnixListener};
use tokio::time::timeout;

use crate::call_loops::Loops;
use crate::connections::{Entry, Full, Idle};
use crate::control::connection::{Connection, Leaving, Stream, WhyClosed};
use crate::control::hello::Role;
use crate::peer::Peer;
use crate::process_watch::Via;
use crate::shared::Shared;

/// For preface and hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);

/// For a connection for calls to get a place. Its client tries again after that.
const PLACE_TIMEOUT: Duration = Duration::from_secs(1);

/// Between two looks whether there is one.
const PLACE_PAUSE: Duration = Duration::from_millis(20);

/// How often the kernel asks whether the host of a client that sends nothing is there.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// After a failed accept: most likely descriptors ran out, which time mends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Connections that make room meanwhile, if those have.
const ROOM: usize = 64;

/// Accepts TCP connections for ever.
pub async fn accept_tcp(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let peer = Peer::Ip(address.ip());
                if let Err(error) = stream.set_nodelay(true).and_then(|()| keep_alive(&stream, KEEPALIVE_INTERVAL)) {
                    tracing::debug!(%peer, %error, "socket options");
                }
                start(&shared, stream, peer, Via::Tcp);
            }
            Err(error) => pause(&shared, &error).await,
        }
    }
}

/// Accepts connections of the same user on this host for ever.
pub async fn accept_unix(shared: Arc<Shared>, listener: UnixListener) {
    let own = rustix::process::geteuid().as_raw();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match mooncake_os::peer_credentials(&stream) {
                Ok(credentials) if credentials.is_own_user() => {
                    let peer = Peer::Process(credentials.pid);
                    let via = Via::Unix(mooncake_os::peer_pidfd(&stream).ok());
                    start(&shared, stream, peer, via);
                }
                Ok(credentials) => {
                    let peer = Peer::Process(credentials.pid);
                    peer.warn(&shared.peers, || {
                        format!("user {} may not use the Unix socket of user {own}; use TCP", credentials.uid)
                    });
                }
                Err(error) => tracing::debug!(%error, "peer credentials"),
            },
            Err(error) => pause(&shared, &error).await,
        }
    }
}

fn start<S: Stream>(shared: &Arc<Shared>, stream: S, peer: Peer, via: Via) {
    let Ok(entry) = Entry::new(&shared.connections, peer) else {
        peer.warn(&shared.peers, || "too many connections begin at a time; this one is closed".to_owned());
        return;
    };
    let number = entry.number();
    let task = tokio::spawn(serve(shared.clone(), stream, peer, via, entry));
    Entry::set_first_task(&shared.connections, number, task.abort_handle());
}

async fn serve<S: Stream>(shared: Arc<Shared>, stream: S, peer: Peer, via: Via, entry: Entry) {
    if let Err(why) = greet(&shared, stream, peer, via, entry).await {
        told(&shared, peer, why);
    }
}

fn told(shared: &Shared, peer: Peer, why: WhyClosed) {
    match why {
        WhyClosed::Closed | WhyClosed::Stopping(_) => {}
        WhyClosed::Garbage(_) | WhyClosed::Crowded(_) => {
            peer.warn(&shared.peers, || format!("connection closed: {why}"))
        }
        error => tracing::debug!(%peer, %error, "connection ended"),
    }
}

/// A connection's life up to its hello's answer; then it goes where it is served.
async fn greet<S: Stream>(
    shared: &Arc<Shared>,
    stream: S,
    peer: Peer,
    via: Via,
    entry: Entry,
) -> Result<(), WhyClosed> {
    let mut connection = Connection::new(stream);
    let hello = timeout(HELLO_TIMEOUT, hello::read(&mut connection))
        .await
        .map_err(|_| WhyClosed::Garbage(format!("no hello within {HELLO_TIMEOUT:?}")))??;
    if hello::asks_for_anchor(&hello) {
        entry.asks_for_anchor();
    }
    let (reply, role) = hello::answer(shared, hello, via).await?;
    match role {
        Role::Over => connection.send(&reply).await?,
        Role::Anchor(anchor) => {
            entry.is_anchor(anchor.session);
            connection.send(&reply).await?;
            hand_over(shared, &shared.threads.anchors, connection.leave()?, peer, entry, async move |connection| {
                anchor::serve(anchor, connection).await
            });
        }
        Role::Call(session) => {
            let idle = connection.until_closed(place_for_calls(shared, &entry, session)).await??;
            connection.send(&reply).await?;
            let inside = shared.clone();
            hand_over(shared, &shared.threads.calls, connection.leave()?, peer, entry, async move |mut connection| {
                call::serve(&inside, session, &idle, &mut connection).await
            });
        }
    }
    Ok(())
}

/// Waits until another connection is idle that can give up its place, if it must.
async fn place_for_calls(shared: &Shared, entry: &Entry, session: SessionId) -> Result<Arc<Idle>, WhyClosed> {
    let began = Instant::now();
    loop {
        match entry.is_for_calls(session) {
            Ok(idle) => return Ok(idle),
            Err(Full) if began.elapsed() > PLACE_TIMEOUT => {
                return Err(WhyClosed::Crowded(shared.connections.limits().calls));
            }
            Err(Full) => tokio::time::sleep(PLACE_PAUSE).await,
        }
    }
}

/// Has a connection served by another thread.
fn hand_over<S: Stream, F: Future<Output = Result<(), WhyClosed>> + Send>(
    shared: &Arc<Shared>,
    threads: &Loops,
    leaving: Leaving<S>,
    peer: Peer,
    entry: Entry,
    serve: impl FnOnce(Connection<S>) -> F + Send + 'static,
) {
    let number = entry.number();
    let inside = shared.clone();
    let task = async move {
        let _entry = entry;
        let ended = match leaving.arrive() {
            Ok(connection) => serve(connection).await,
            Err(error) => Err(error.into()),
        };
        if let Err(why) = ended {
            told(&inside, peer, why);
        }
    };
    Entry::set_task(&shared.connections, number, threads.spawn(task));
}

/// Between two lines about the same trouble.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// It is tried again at once, and may go on failing for long.
fn say_now_and_then(error: &io::Error, is_short: bool) {
    static SAID: parking_lot::Mutex<Option<Instant>> = parking_lot::Mutex::new(None);
    let mut said = SAID.lock();
    if said.is_some_and(|said| said.elapsed() <= SAY_AGAIN) {
        return;
    }
    *said = Some(Instant::now());
    match is_short {
        true => tracing::warn!(
            %error, limit = mooncake_os::descriptor_limit(),
            "no descriptor for another connection: connections for calls that rest make room. Raise the limit of open \
             files (`ulimit -n`, LimitNOFILE=) to two for each client and one for each call at a time"
        ),
        false => tracing::warn!(%error, "accept failed; new clients wait until it works again"),
    }
}

async fn pause(shared: &Shared, error: &io::Error) {
    let short_of = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    let is_short = Errno::from_io_error(error).is_some_and(|errno| short_of.contains(&errno));
    say_now_and_then(error, is_short);
    if is_short {
        (0..ROOM).find(|_| !shared.connections.make_room());
    }
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

#[cfg(test)]
mod tests;
