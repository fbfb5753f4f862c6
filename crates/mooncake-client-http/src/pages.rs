//! `/health`, `/livez`, `/readyz`, `/metrics` and `/metrics/summary` of one store.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use mooncake_client::{Health, Store};
use mooncake_http::reply::{INVALID_PARAMS, as_json, failed, plain, text, with_type};
use serde_json::json;
use tokio::sync::Mutex;

/// Age up to which the master's answer serves further probes: however many, they ask it ten times a second at most.
const FRESH: Duration = Duration::from_millis(100);

/// The store that the pages show.
#[derive(Debug, Default)]
pub(crate) struct ShownStore {
    pub store: OnceLock<Store>,
    /// Its last health, and when the master was asked.
    last: Mutex<Option<(Instant, Health)>>,
}

pub(crate) fn router(shown: Arc<ShownStore>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/livez", get(async || plain("ok\n".to_owned())))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/metrics/summary", get(summary))
        .fallback(async || {
            failed(
                StatusCode::NOT_FOUND,
                INVALID_PARAMS,
                "no such page; see /health, /livez, /readyz, /metrics, /metrics/summary",
            )
        })
        .with_state(shown)
}

async fn health(State(shown): State<Arc<ShownStore>>) -> Response {
    let (status, word, code) = match shown.health().await {
        Some(Health::Ok) => (StatusCode::OK, "healthy", 0),
        Some(Health::Closed) | None => (StatusCode::SERVICE_UNAVAILABLE, "not_initialized", 1),
        Some(Health::MasterUnreachable) => (StatusCode::SERVICE_UNAVAILABLE, "master_unreachable", 2),
    };
    as_json(status, &json!({"status": word, "code": code}))
}

/// Whether calls of the store are answered. A master that is away makes it not ready, and is no reason to end it.
async fn ready(State(shown): State<Arc<ShownStore>>) -> Response {
    let why = match shown.health().await {
        Some(Health::Ok) => return plain("ok\n".to_owned()),
        Some(Health::Closed) | None => "the store is not set up\n",
        Some(Health::MasterUnreachable) => "its master does not answer\n",
    };
    with_type(StatusCode::SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", why.into())
}

async fn metrics(State(shown): State<Arc<ShownStore>>) -> Response {
    shown.store.get().and_then(Store::metrics_page).map_or_else(not_available, text)
}

async fn summary(State(shown): State<Arc<ShownStore>>) -> Response {
    let line = shown.store.get().and_then(Store::metrics_summary);
    line.map_or_else(not_available, |line| plain(format!("{line}\n")))
}

fn not_available() -> Response {
    with_type(StatusCode::SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", "metrics not available".into())
}

impl ShownStore {
    /// None: there is no store yet.
    async fn health(self: Arc<Self>) -> Option<Health> {
        let store = self.store.get()?.clone();
        if store.is_closed() {
            return Some(Health::Closed);
        }
        // The handler of a probe that hangs up is dropped. The question runs in its own task: the next probe gets that
        // answer.
        let asked = tokio::spawn(async move { self.ask(store).await });
        Some(asked.await.unwrap_or(Health::MasterUnreachable))
    }

    /// One caller asks the master; callers that come meanwhile wait for that answer.
    async fn ask(&self, store: Store) -> Health {
        let mut last = self.last.lock().await;
        if let Some((at, health)) = *last
            && at.elapsed() < FRESH
        {
            return health;
        }
        let health = tokio::task::spawn_blocking(move || store.health()).await.unwrap_or(Health::MasterUnreachable);
        *last = Some((Instant::now(), health));
        health
    }
}
