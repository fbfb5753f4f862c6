//! Connections of HTTP servers: so many, each with a deadline on everything.

use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::taken_count::TakenCount;

/// For the whole of a request's header, and between two requests.
const HEADER_TIMEOUT: Duration = Duration::from_millis(900);

/// A connection that takes no more than [`MOVED_MIN`] in so long is cut. Long replies may take longer than that.
const STUCK: Duration = Duration::from_secs(30);

const MOVED_MIN: u64 = 64 << 10;

const CONNECTIONS_MAX: usize = 128;

/// Accepts connections for ever. `pages` is asked for each: what it shows, and
/// whether it may ask for more than one.
pub async fn accept(pages: impl Fn() -> (Router, bool) + Send + 'static, listener: TcpListener) {
    let slots = std::sync::Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "HTTP accept failed");
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        // Over the limit: closed at once, which a scraper notices and a flood does not profit from.
        let Ok(slot) = slots.clone().try_acquire_owned() else { continue };
        let (router, again) = pages();
        let service = TowerToHyperService::new(router);
        tokio::spawn(async move {
            let (stream, taken) = TakenCount::over(stream);
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .max_buf_size(64 << 10)
                .keep_alive(again)
                .serve_connection(TokioIo::new(stream), service);
            match taken.while_moving(connection, STUCK, MOVED_MIN).await {
                Some(Ok(())) => {}
                Some(Err(error)) => tracing::debug!(%error, "HTTP connection ended"),
                None => tracing::debug!("HTTP connection cut: it took too long"),
            }
            drop(slot);
        });
    }
}
