//! The HTTP page that tells who uses how much.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use mooncake_core::ClientView;
use mooncake_http::reply::as_json;
use serde_json::{Value, json};

use crate::reading::{ClientReading, clients};
use crate::shared::Shared;

/// All that are not over.
pub async fn list(State(shared): State<Arc<Shared>>) -> Response {
    let now = Instant::now();
    let clients: Vec<Value> = clients(&shared).iter().map(|client| told(client, now)).collect();
    as_json(StatusCode::OK, &json!({"total_clients": clients.len(), "clients": clients}))
}

fn told(client: &ClientReading, now: Instant) -> Value {
    let ClientReading { view, seen } = client;
    let (about, usage, rates) = (seen.about(), seen.usage(), seen.rates(now));
    json!({
        "client_id": view.session.0.to_string(),
        "name": view.name,
        "host": about.host,
        "user": about.user,
        "pod": about.pod,
        "program": about.program,
        "pid": about.pid,
        "software": about.software,
        "status": state(view),
        "away_seconds": view.away_us.map(|away_us| away_us as f64 / 1e6),
        "segments": view.segments,
        "lent_bytes": view.lent,
        "used_bytes": view.used,
        "pinned_bytes": view.pinned,
        "viewed_bytes": view.viewed,
        "unfinished_bytes": view.unfinished,
        "gets": usage.gets,
        "hits": usage.hits,
        "got_bytes": usage.got_bytes,
        "puts": usage.puts,
        "put_bytes": usage.put_bytes,
        "exists": usage.exists,
        "gets_per_second": rates.gets,
        "got_bytes_per_second": rates.got_bytes,
        "puts_per_second": rates.puts,
        "put_bytes_per_second": rates.put_bytes,
        "exists_per_second": rates.exists,
    })
}

fn state(view: &ClientView) -> &'static str {
    match view {
        ClientView { is_bereft: true, .. } => "WAITS_FOR_HEIR",
        ClientView { away_us: Some(_), .. } => "AWAY",
        _ => "OK",
    }
}
