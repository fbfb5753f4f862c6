//! The HTTP page that tells who uses how much.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use mooncake_http::reply::as_json;
use serde_json::json;

use crate::reading::clients;
use crate::shared::Shared;
use crate::status::clients_of;

/// All that are not over.
pub async fn list(State(shared): State<Arc<Shared>>) -> Response {
    let clients = clients_of(&shared, &clients(&shared));
    as_json(StatusCode::OK, &json!({"total_clients": clients.len(), "clients": clients}))
}
