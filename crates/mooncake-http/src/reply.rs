//! Answers, as Mooncake writes them.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;

/// Text as Prometheus reads it.
pub fn text(body: impl Into<Body>) -> Response {
    with_type(StatusCode::OK, "text/plain; version=0.0.4", body.into())
}

/// Text for people.
pub fn plain(body: String) -> Response {
    with_type(StatusCode::OK, "text/plain; charset=utf-8", body.into())
}

/// A JSON value. What is sent has names for keys, and so is always one.
pub fn as_json(status: StatusCode, value: &impl Serialize) -> Response {
    let text = serde_json::to_string(value).unwrap_or_default();
    with_type(status, "application/json; charset=utf-8", text.into())
}

/// Code of a request that makes no sense.
pub const INVALID_PARAMS: i32 = -600;

/// Mooncake's JSON for what did not work, with its integer code.
pub fn failed(status: StatusCode, code: i32, message: &str) -> Response {
    as_json(status, &json!({"success": false, "error_code": code, "error_message": message}))
}

/// Anything of a type.
pub fn with_type(status: StatusCode, kind: &'static str, body: Body) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static(kind))], body).into_response()
}
