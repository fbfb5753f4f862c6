//! The HTTP page that tells who uses how much.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
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
    let (about, usage, rates) = (client.seen.about(), client.seen.usage(), client.seen.rates(now));
    json!({
        "client_id": client.session.0.to_string(),
        "name": client.name,
        "host": about.host,
        "user": about.user,
        "pod": about.pod,
        "program": about.program,
        "pid": about.pid,
        "software": about.software,
        "status": state(client),
        "away_seconds": client.away_us.map(|away_us| away_us as f64 / 1e6),
        "segments": client.segments,
        "lent_bytes": client.lent,
        "used_bytes": client.used,
        "pinned_bytes": client.pinned,
        "views": client.views,
        "viewed_bytes": client.viewed,
        "unfinished_bytes": client.unfinished,
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

fn state(client: &ClientReading) -> &'static str {
    match client {
        ClientReading { is_bereft: true, .. } => "WAITS_FOR_HEIR",
        ClientReading { away_us: Some(_), .. } => "AWAY",
        _ => "OK",
    }
}
