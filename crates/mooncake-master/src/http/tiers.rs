//! HTTP pages that tell which tiers there are, and that forget them.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use mooncake_core::{TierState, TierView};
use mooncake_http::reply::{INVALID_PARAMS, as_json, failed};
use mooncake_ids::{NotTierUuid, TierUuid};
use serde_json::{Value, json};

use super::UNAVAILABLE;
use super::query::{lacks, parameter};
use crate::removal::forget_tiers;
use crate::shared::Shared;

/// Code of a tier that is not known, as that of a segment.
const NOT_FOUND: i32 = -101;

/// Most tiers that an error names.
const NAMED_MAX: usize = 16;

/// All that are not Gone.
pub async fn details(State(shared): State<Arc<Shared>>) -> Response {
    let tiers: Vec<Value> = shared.read(|core, _| core.tiers().map(|view| detail(&view)).collect());
    as_json(StatusCode::OK, &json!({"total_tiers": tiers.len(), "tiers": tiers}))
}

fn detail(view: &TierView<'_>) -> Value {
    json!({
        "uuid": view.spec.uuid.to_string(),
        "state": match view.state {
            TierState::Live => "LIVE",
            TierState::Checking => "CHECKING",
            TierState::Hidden => "HIDDEN",
        },
        "adopted": view.is_adopted,
        "shared_folder": view.shared_folder(),
        "owner": view.spec.name,
        "client_id": view.session.0.to_string(),
        "records": view.records,
        "object_bytes": view.bytes,
        "capacity_bytes": view.capacity,
        "usage_percent": 100.0 * view.bytes as f64 / view.capacity.max(1) as f64,
        "ordered_bytes": view.ordered,
        "window_bytes": view.window,
    })
}

/// Forgets one, or all. The disk of the log has it when this is answered.
pub async fn forget(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    let Some(named) = parameter(query.as_deref(), "uuid").filter(|named| !named.is_empty()) else {
        return lacks("/api/v1/forget_tier?uuid=UUID, or ?uuid=all");
    };
    let which = match (named, named.parse::<TierUuid>()) {
        ("all", _) => None,
        (_, Ok(uuid)) => Some(uuid),
        (_, Err(NotTierUuid)) => {
            let message = format!("uuid: {named} is none: 32 hexadecimal digits are expected, or all");
            return failed(StatusCode::BAD_REQUEST, INVALID_PARAMS, &message);
        }
    };
    let forgotten = match forget_tiers(&shared, which).await {
        Ok(forgotten) => forgotten,
        Err(error) => return failed(StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, &error.to_string()),
    };
    if let Some(uuid) = which.filter(|_| forgotten.is_empty()) {
        let known = shared.read(|core, _| core.tiers().map(|view| view.spec.uuid).collect::<Vec<_>>());
        let message = format!("no tier has the UUID {uuid}; {}", known_as(&known));
        return failed(StatusCode::NOT_FOUND, NOT_FOUND, &message);
    }
    let forgotten: Vec<Value> =
        forgotten.iter().map(|(uuid, records)| json!({"uuid": uuid.to_string(), "records": records})).collect();
    as_json(StatusCode::OK, &json!({"success": true, "forgotten": forgotten}))
}

fn known_as(known: &[TierUuid]) -> String {
    let named: Vec<String> = known.iter().take(NAMED_MAX).map(TierUuid::to_string).collect();
    match (known.len(), known.len().saturating_sub(NAMED_MAX)) {
        (0, _) => "this master knows none".to_owned(),
        (_, 0) => format!("known: {}", named.join(", ")),
        (_, more) => format!("known: {} and {more} more: see /get_tiers_detail", named.join(", ")),
    }
}
