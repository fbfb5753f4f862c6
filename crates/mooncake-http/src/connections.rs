//! Connections of HTTP servers: so many, each with a deadline on everything.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::Request;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use mooncake_os::Guarded;
use socket2::SockRef;
use tokio::net::TcpListener;

use crate::connection_table::ConnectionTable;
use crate::progress::{Behind, Busy, Counted, Progress};

const MOVED_MIN: u64 = 64 << 10;

/// What a server grants its clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// A connection over which no request and no more than 64 KiB comes or goes in so long is cut. Long replies and
    /// uploads may take longer than that.
    pub stuck: Duration,
    /// For the whole of a request's header, and between two requests.
    pub header: Duration,
    /// A connection whose peer takes no byte of an answer for so long is cut.
    pub unread: Duration,
    /// Whether a connection whose request is being answered makes room for another one only when there is no other.
    pub spares_busy: bool,
}

impl Default for Limits {
    /// Of pages for people and probes.
    fn default() -> Limits {
        let long = Duration::from_secs(30);
        Limits { connections: 128, stuck: long, header: Duration::from_millis(900), unread: long, spares_busy: false }
    }
}

/// The client that a request comes from: in its extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Bytes of a request's header, and of what has come and is not read yet.
const BUFFER_MAX: usize = 64 << 10;

/// Bytes of answers that the kernel takes before they can be sent. With its own megabytes a crowd that asks and does
/// not read would have the server make pages for seconds.
const UNSENT_MAX: u32 = 64 << 10;

/// Between two lines about the same trouble.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// Accepts connections for ever. `pages` is asked for each: what it shows, and
/// whether it may ask for more than one. A forked child keeps none of the
/// sockets.
///
/// Every connection that comes is let in. When there are too many, another one has to go: see `ConnectionTable::admit`.
pub async fn accept(
    pages: impl Fn() -> (Router, bool) + Send + 'static,
    listener: Guarded<TcpListener>,
    limits: Limits,
) {
    accept_counting(pages, listener, limits, Arc::default()).await;
}

/// [`accept`], which also counts the connections that are `behind`: a server that ends when there are none cuts off no
/// answer.
pub async fn accept_counting(
    pages: impl Fn() -> (Router, bool) + Send + 'static,
    listener: Guarded<TcpListener>,
    limits: Limits,
    behind: Arc<Behind>,
) {
    let table = Arc::new(ConnectionTable::new(limits.connections, limits.spares_busy));
    let mut said: Option<Instant> = None;
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely descriptors ran out, which may last.
                if said.is_none_or(|said| said.elapsed() > SAY_AGAIN) {
                    said = Some(Instant::now());
                    tracing::warn!(%error, "HTTP accept failed; new connections wait until it works again");
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let stream = Guarded::new(stream);
        if let Err(error) = SockRef::from(&*stream).set_tcp_notsent_lowat(UNSENT_MAX) {
            tracing::debug!(%error, "unsent answers are not bounded");
        }
        let entry = table.admit(peer.ip());
        let progress = entry.progress().clone();
        let (router, again) = pages();
        let behind = behind.clone();
        let service = InTurn { pages: TowerToHyperService::new(router), progress: progress.clone(), peer: Peer(peer) };
        tokio::spawn(async move {
            let stream = TokioIo::new(Counted::new(stream, progress.clone(), limits.unread, behind));
            let connection = speaking(limits.header, again).serve_connection(stream, service);
            match progress.while_moving(connection, limits.stuck, MOVED_MIN).await {
                Some(Ok(())) => {}
                Some(Err(error)) => tracing::debug!(%error, "HTTP connection ended"),
                None => tracing::debug!(%peer, "HTTP connection cut: it took too long, or held up others"),
            }
            drop(entry);
        });
    }
}

/// How a connection speaks HTTP: so long a header may take, and `again`: for more than one request.
pub(crate) fn speaking(header: Duration, again: bool) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(header).max_buf_size(BUFFER_MAX).keep_alive(again);
    http
}

/// The body of an answer; until it is dropped its connection is busy.
struct Answering {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Answers the requests of one connection: each when its turn comes, so that one that sends hundreds at once has no
/// more than its share of the processor.
struct InTurn {
    pages: TowerToHyperService<Router>,
    progress: Arc<Progress>,
    peer: Peer,
}

impl Service<Request<Incoming>> for InTurn {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.peer);
        let busy = self.progress.asked();
        let answer = self.pages.call(request);
        Box::pin(async move {
            tokio::task::yield_now().await;
            answer.await.map(|response| response.map(|body| Body::new(Answering { body, _busy: busy })))
        })
    }
}
