//! The admin and metrics server: paths and shapes of Mooncake.

mod clients;
mod objects;
pub(crate) mod query;
mod status;
mod tiers;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query, RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use mooncake_core::{KeysCursor, SegmentState};
use mooncake_http::reply::{INVALID_PARAMS, as_json, failed, plain, text};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::log::{Begun, LogError, begin_anew};
use crate::machine::SLICE;
use crate::machine::segment_list::{self, Listed};
use crate::reading;
use crate::removal::remove_all;
use crate::shared::Shared;

/// What there is, for a request without a path.
const INDEX: &str = "\
mooncake_master: pages of this port

GET  /                       a page for browsers; this text for others
GET  /status                 all that this page shows: what is wrong, figures, rates, history, clients
GET  /livez, /readyz         503 once its core is stuck, else 200; 200 while it serves, else 503
GET  /health                 whether the master serves, and what is broken meanwhile
GET  /metrics                Prometheus text
GET  /metrics/summary        one line of figures
GET  /get_all_keys           one key a line; ?prefix=TEXT, ?limit=NUMBER
GET  /get_objects            objects with size, age and place; ?prefix=TEXT, ?limit=NUMBER, ?key=KEY
GET  /query_key?key=KEY      where an object lies; counts as an existence query
GET  /batch_query_keys?keys=KEY,KEY    the same of several, percent-encoded; protects nothing
GET  /get_all_segments       names of segments, one a line
GET  /get_segments_detail    segments with their figures
GET  /get_tiers_detail       tiers with their figures
GET  /get_clients            clients: who they are, what they lend, hold and ask for
GET  /query_segment?segment=NAME       how full the segments of a name are
GET  /role, /ha_status, /leader        as Mooncake's master answers them
POST /api/v1/remove_all      removes every object; ?force=true: protected ones too
POST /api/v1/forget_tier?uuid=UUID     forgets a tier that is gone for good, or each of them: ?uuid=all
POST /api/v1/start_log       begins a new log from what the master knows, where the log was lost

Keys stand on these pages as they are, but for control characters, bytes that are no UTF-8 and what would read as
such: these are percent-encoded, as /batch_query_keys takes them.
";

const BODY_MAX: usize = 64 << 10;

/// Code of "not now", for the error body.
const UNAVAILABLE: i32 = -1011;

/// Code of a defect.
const INTERNAL: i32 = -1;

/// The pages: until the master serves they say so, and those connections end with their first answer.
pub fn pages(shared: Arc<OnceLock<Arc<Shared>>>) -> impl Fn() -> (Router, bool) + Send + 'static {
    let (starting, serving) = (starting(), OnceLock::new());
    move || match shared.get() {
        Some(shared) => (serving.get_or_init(|| router(shared.clone())).clone(), true),
        None => (starting.clone(), false),
    }
}

/// Pages of a master that reads its log.
fn starting() -> Router {
    let since = Instant::now();
    let waiting = async || failed(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, "the master is reading its log");
    Router::new()
        .route("/", get(status::page))
        .route("/status", get(async move || as_json(StatusCode::OK, &crate::status::starting(since.elapsed()))))
        .route("/livez", get(async || plain("ok\n".to_owned())))
        .route("/readyz", get(async || status::not_ready("the master is reading its log")))
        .route("/health", get(async || health_page("recovering", false, &[])))
        .route("/role", get(async || plain("standby".to_owned())))
        .route("/ha_status", get(async || plain("recovering".to_owned())))
        .route("/leader", get(leader))
        .fallback(waiting)
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(status::page))
        .route("/status", get(status::status))
        .route("/livez", get(status::alive))
        .route("/readyz", get(status::ready))
        .route("/get_objects", get(objects::list))
        .route("/metrics", get(metrics_page))
        .route("/metrics/summary", get(metrics_summary))
        .route("/health", get(health))
        .route("/role", get(async || plain("leader".to_owned())))
        .route("/ha_status", get(async || plain("serving".to_owned())))
        .route("/leader", get(leader))
        .route("/query_key", get(query::key))
        .route("/batch_query_keys", get(query::keys))
        .route("/query_segment", get(query::segment))
        .route("/get_all_keys", get(all_keys))
        .route("/get_all_segments", get(all_segments))
        .route("/get_segments_detail", get(segments_detail))
        .route("/get_tiers_detail", get(tiers::details))
        .route("/get_clients", get(clients::list))
        .route("/api/v1/forget_tier", post(tiers::forget))
        .route("/api/v1/remove_all", post(remove_everything))
        .route("/api/v1/start_log", post(start_log))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(shared)
}

async fn metrics_page(State(shared): State<Arc<Shared>>) -> Response {
    text(reading::read(&shared).page())
}

async fn metrics_summary(State(shared): State<Arc<Shared>>) -> Response {
    let line = reading::summary_line(&shared);
    text(format!("role=leader, state=serving, service_ready=true, master={{{line}}}, ha={{off}}\n"))
}

/// Ready only while operations can be logged: a master whose log is closed answers no call any more.
async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let degraded: &[&str] = if shared.log.is_lost() { &["log_lost"] } else { &[] };
    health_page("serving", !shared.log.is_closed(), degraded)
}

/// `degraded` names what is broken while the master serves all the same: its probes go on succeeding, its operators
/// have to act.
fn health_page(state: &str, ready: bool, degraded: &[&str]) -> Response {
    let role = if ready { "leader" } else { "standby" };
    as_json(
        StatusCode::OK,
        &json!({"status": "ok", "role": role, "ha_state": state, "service_ready": ready, "degraded": degraded,
            "leader_address": null, "view_version": null}),
    )
}

/// Begins a new log where the old one was lost. It is there when this is answered.
async fn start_log(State(shared): State<Arc<Shared>>) -> Response {
    let started = tokio::task::spawn_blocking(move || begin_anew(&shared.log, &*shared)).await;
    let started = match started {
        Ok(started) => started,
        Err(broken) => {
            tracing::error!(%broken, "beginning a new log broke off: please report this");
            let message =
                "internal error: beginning a new log broke off; the master's log says where, please report it";
            return failed(StatusCode::INTERNAL_SERVER_ERROR, INTERNAL, message);
        }
    };
    match started {
        Ok(Begun { lsn, bytes }) => as_json(StatusCode::OK, &json!({"success": true, "lsn": lsn, "bytes": bytes})),
        Err(error @ (LogError::NotLost | LogError::NoLog | LogError::Snapshotting)) => {
            failed(StatusCode::CONFLICT, UNAVAILABLE, &error.to_string())
        }
        Err(error) => failed(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, &error.to_string()),
    }
}

/// Without leader election there is no view of one.
async fn leader() -> Response {
    as_json(StatusCode::OK, &json!({"present": false, "leader_address": null, "view_version": null}))
}

/// All keys, or those with a `prefix`, which may be percent-encoded, and no more than a `limit`.
async fn all_keys(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    let prefix = query::decode(query::parameter(query.as_deref(), "prefix").unwrap_or_default());
    let left = match query::parameter(query.as_deref(), "limit").map(str::parse::<u64>) {
        None => u64::MAX,
        Some(Ok(limit)) => limit,
        Some(Err(_)) => {
            let message = "limit: a whole number is expected, as in /get_all_keys?limit=1000";
            return failed(StatusCode::BAD_REQUEST, INVALID_PARAMS, message);
        }
    };
    text(Body::new(Keys { shared, cursor: KeysCursor::default(), prefix, left, finished: left == 0 }))
}

async fn all_segments(State(shared): State<Arc<Shared>>) -> Response {
    let live = segment_list::list(&*shared).into_iter().filter(Listed::is_live);
    text(live.fold(String::new(), |page, segment| page + &segment.name + "\n"))
}

async fn segments_detail(State(shared): State<Arc<Shared>>) -> Response {
    let segments: Vec<Value> = segment_list::list(&*shared)
        .iter()
        .map(|view| {
            let endpoint = view.endpoint();
            json!({
                "segment_name": view.name,
                "segment_id": view.uuid.to_string(),
                "client_id": view.session.0.to_string(),
                // Peers address this memory by UUID and offset, never by an address.
                "base_address": "0x0",
                "size_bytes": view.capacity,
                "size_human": format!("{:.2} GiB", view.capacity as f64 / f64::from(1 << 30)),
                "te_endpoint": endpoint.tcp.first().cloned().unwrap_or_default(),
                "protocol": if endpoint.unix_socket.is_empty() { "tcp" } else { "tcp,shm" },
                "status": match (view.state, view.open) {
                    (SegmentState::Live, false) if view.leaving => "GRACEFULLY_UNMOUNTING",
                    (SegmentState::Live, true) => "OK",
                    (SegmentState::Live, false) => "CLOSED",
                    _ => "HIDDEN",
                },
                "allocator_used_bytes": view.used,
                "allocator_capacity_bytes": view.capacity,
                "allocator_usage_percent": 100.0 * view.used as f64 / view.capacity.max(1) as f64,
                "populated_bytes": view.populated,
                "pinned_bytes": view.pinned,
                "quarantined_bytes": view.quarantined,
            })
        })
        .collect();
    as_json(StatusCode::OK, &json!({"total_segments": segments.len(), "segments": segments}))
}

/// A `tenant_id` is passed over: without tenants all of them are the same one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoveAllQuery {
    force: Option<String>,
    #[serde(rename = "tenant_id")]
    _tenant: Option<serde::de::IgnoredAny>,
}

async fn remove_everything(
    State(shared): State<Arc<Shared>>,
    query: Result<Query<RemoveAllQuery>, QueryRejection>,
) -> Response {
    let query = match query {
        Ok(Query(query)) => query,
        Err(error) => return failed(StatusCode::BAD_REQUEST, INVALID_PARAMS, &error.body_text()),
    };
    let force = match query.force.as_deref() {
        Some("true" | "1") => true,
        None | Some("false" | "0" | "") => false,
        // A caller that means something by it is not to find that it meant nothing.
        Some(_) => return failed(StatusCode::BAD_REQUEST, INVALID_PARAMS, "force: true or false is expected"),
    };
    match remove_all(&shared, force, None).await {
        Ok(removed) => {
            // Protected objects, if these were to be spared, and what was stored meanwhile.
            let remaining = shared.read(|core, _| core.stats().keys);
            as_json(StatusCode::OK, &json!({"success": true, "removed_count": removed, "remaining_count": remaining}))
        }
        Err(error) => failed(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, &error.to_string()),
    }
}

async fn unknown() -> Response {
    failed(StatusCode::NOT_FOUND, INVALID_PARAMS, "no such page; / lists those that there are")
}

async fn wrong_method() -> Response {
    failed(
        StatusCode::METHOD_NOT_ALLOWED,
        INVALID_PARAMS,
        "this page wants another method; those under /api/v1 want POST",
    )
}

/// The list of keys, taken from the core in slices while it is sent.
struct Keys {
    shared: Arc<Shared>,
    cursor: KeysCursor,
    prefix: Vec<u8>,
    /// How many more are asked for.
    left: u64,
    finished: bool,
}

impl http_body::Body for Keys {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if this.finished {
            return Poll::Ready(None);
        }
        let (mut page, mut left) = (Vec::new(), this.left);
        let is_through = this.shared.read(|core, _| {
            core.keys_slice(&mut this.cursor, SLICE, |key| {
                if left > 0 && key.starts_with(&this.prefix) {
                    page.extend_from_slice(query::shown(key).as_bytes());
                    page.push(b'\n');
                    left -= 1;
                }
            })
        });
        this.left = left;
        this.finished = is_through || left == 0;
        if !page.is_empty() {
            return Poll::Ready(Some(Ok(http_body::Frame::data(page.into()))));
        }
        // Millions of keys may lie between two with the prefix: other pages have their turn meanwhile.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use mooncake_http::accept;
    use mooncake_os::Guarded;
    use tokio::net::TcpListener;

    use super::*;
    use std::time::Duration;

    use mooncake_core::Stats;

    use crate::history::Sample;
    use crate::log::Log;

    async fn page(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn it_is_ready_only_while_it_serves_and_alive_all_the_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(OnceLock::new());
        let accepting =
            tokio::spawn(accept(pages(shared.clone()), Guarded::new(listener), mooncake_http::Limits::default()));
        let health = page(address, "/health").await;
        assert!(health.starts_with("HTTP/1.1 200") && health.contains("\"service_ready\":false"), "{health}");
        assert!(page(address, "/role").await.ends_with("standby"));
        assert!(page(address, "/ha_status").await.ends_with("recovering"));
        assert!(page(address, "/livez").await.starts_with("HTTP/1.1 200"));
        assert!(page(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        assert!(page(address, "/status").await.contains("\"state\":\"recovering\""));
        let refused = page(address, "/get_all_keys").await;
        assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("-1011"), "{refused}");

        let log = Arc::new(Log::new(1, 0, None, false));
        assert!(shared.set(Arc::new(Shared::of(log.clone()))).is_ok());
        assert!(page(address, "/health").await.contains("\"service_ready\":true"));
        assert!(page(address, "/role").await.ends_with("leader"));
        assert!(page(address, "/ha_status").await.ends_with("serving"));
        assert!(page(address, "/leader").await.contains("\"present\":false"));
        assert!(page(address, "/get_all_keys").await.starts_with("HTTP/1.1 200"));
        assert!(page(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(page(address, "/livez").await.starts_with("HTTP/1.1 200"));
        let core = shared.get().unwrap();
        let sample = |at| Sample::of(&Stats::default(), &core.metrics.read(), &core.log.read(), at);
        core.history.lock().take(sample(Instant::now() - Duration::from_secs(61)));
        assert!(page(address, "/livez").await.starts_with("HTTP/1.1 503"), "the core is not asked any more");
        core.history.lock().take(sample(Instant::now()));
        assert!(page(address, "/livez").await.starts_with("HTTP/1.1 200"));

        log.close();
        let stops = page(address, "/readyz").await;
        assert!(stops.starts_with("HTTP/1.1 503") && stops.ends_with("the master stops\n"), "{stops}");
        let health = page(address, "/health").await;
        assert!(health.starts_with("HTTP/1.1 200") && health.contains("\"service_ready\":false"), "{health}");
        accepting.abort();
    }
}
