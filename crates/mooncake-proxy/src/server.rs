//! The proxy as a server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use mooncake_http::Limits;
use mooncake_http::reply::as_json;
use mooncake_os::Guarded;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::admin;
use crate::check::Unfit;
use crate::fault::error;
use crate::forward::flow;
use crate::forward::flow::ATTEMPTS;
use crate::instances::address::InstanceAddress;
use crate::instances::instance::Kind;
use crate::options::ProxyOptions;
use crate::proxy::Proxy;

/// A proxy that listens.
pub struct ProxyServer {
    proxy: Arc<Proxy>,
    listener: Guarded<TcpListener>,
    address: SocketAddr,
}

/// Why a proxy did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its port.
    #[error("cannot listen on {address}: {source}; {}", match source.kind() {
        io::ErrorKind::AddrNotAvailable => "name an address of this machine with --host",
        _ => "choose another port with --port, 0 is any free one",
    })]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What failed.
        source: io::Error,
    },
    /// The system.
    #[error("{0}")]
    System(#[from] io::Error),
    /// An instance that answers, but not as one of this model.
    #[error("{0}")]
    Unfit(String),
    /// The same instance twice.
    #[error("{0} is named twice")]
    Twice(InstanceAddress),
}

impl ProxyServer {
    /// Listens. Instances that do not answer yet are taken into service when they do; one that serves another model is
    /// an error.
    pub async fn open(
        options: ProxyOptions,
        prefill: Vec<InstanceAddress>,
        decode: Vec<InstanceAddress>,
    ) -> Result<ProxyServer, StartError> {
        let listen = |source| StartError::Listen { address: options.listen, source };
        let listener = TcpListener::bind(options.listen).await.map_err(listen)?;
        let address = listener.local_addr()?;
        let proxy = Proxy::new(options)?;
        let kinds = [(Kind::Prefill, prefill), (Kind::Decode, decode)];
        // All at once: an instance that is not there yet takes its time to say so.
        let mut probes = JoinSet::new();
        for (kind, address) in kinds.into_iter().flat_map(|(kind, all)| all.into_iter().map(move |one| (kind, one))) {
            let instance = proxy.fleet.add(kind, address.clone()).ok_or(StartError::Twice(address))?;
            let proxy = proxy.clone();
            probes.spawn(async move { (proxy.probe(&instance.address).await, instance) });
        }
        while let Some(probed) = probes.join_next().await {
            let (fits, instance) = probed.map_err(io::Error::other)?;
            match fits {
                Ok(()) => instance.is_proven.store(true, Ordering::Relaxed),
                Err(Unfit::Failure(failure)) => {
                    instance.failed(std::time::Instant::now(), &failure.to_string(), true);
                }
                Err(unfit) => return Err(StartError::Unfit(format!("{}: {unfit}", instance.address))),
            }
        }
        Ok(ProxyServer { proxy, listener: Guarded::new(listener), address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it is told to `stop`: then no request is taken any more, and those under way get their time. Once
    /// more, and they do not.
    pub async fn serve(self, stop: &Notify) {
        let options = &self.proxy.options;
        // An answer that is waited for moves nothing for as long as all attempts take.
        let longest = (options.prefill_timeout + options.request_timeout) * ATTEMPTS as u32;
        let limits = Limits {
            connections: options.connections_max,
            stuck: longest + options.stall_timeout,
            header: options.header_timeout,
            unread: options.stall_timeout,
            spares_busy: true,
        };
        let (router, behind) = (router(self.proxy.clone()), self.proxy.behind.clone());
        let checks = tokio::spawn(self.proxy.clone().check_for_ever());
        let samples = tokio::spawn(self.proxy.clone().sample_for_ever());
        tokio::select! {
            () = mooncake_http::accept_counting(move || (router.clone(), true), self.listener, limits, behind) => {}
            () = stop.notified() => {}
        }
        self.proxy.is_stopping.store(true, Ordering::Relaxed);
        tokio::select! {
            () = self.proxy.drained() => {}
            () = stop.notified() => {}
        }
        checks.abort();
        samples.abort();
    }
}

fn router(proxy: Arc<Proxy>) -> Router {
    Router::new()
        .route("/v1/completions", post(flow::generate))
        .route("/v1/chat/completions", post(flow::generate))
        .route("/v1/models", get(models))
        .route("/health", get(admin::health))
        .route("/healthcheck", get(admin::health))
        .route("/metrics", get(admin::metrics))
        .route("/status", get(admin::status))
        .route("/instances/add", post(admin::add))
        .route("/instances/remove", post(admin::remove))
        .route("/", get(admin::page))
        .method_not_allowed_fallback(no_method)
        .fallback(nowhere)
        .with_state(proxy)
}

async fn nowhere(request: Request) -> Response {
    let message = format!("there is no {} {}", request.method(), request.uri().path());
    as_json(StatusCode::NOT_FOUND, &error(StatusCode::NOT_FOUND, &message))
}

async fn no_method(request: Request) -> Response {
    let message = format!("{} is no method of {}", request.method(), request.uri().path());
    as_json(StatusCode::METHOD_NOT_ALLOWED, &error(StatusCode::METHOD_NOT_ALLOWED, &message))
}

/// What a decode instance says.
async fn models(State(proxy): State<Arc<Proxy>>, headers: HeaderMap) -> Response {
    match proxy.models(&headers).await {
        Ok(response) => response,
        Err(fault) => fault.into_response(),
    }
}
