//! What clients are told when there is no answer, in the words of OpenAI's API.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mooncake_http::reply::as_json;
use serde_json::{Value, json};

/// Why a request has no answer of an instance's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the body is no JSON object: {}", whats_wrong(.0))]
    NotJson(#[from] serde_json::Error),
    #[error("the body has more than {most} bytes")]
    TooLong { most: usize },
    #[error("the body did not come within {seconds} s")]
    TooSlow { seconds: u64 },
    #[error("the body broke off: {0}")]
    BrokeOff(String),
    #[error("{waiting} requests wait already; try again later")]
    Crowded { waiting: usize },
    #[error("the requests under way have {all} bytes together; try again later")]
    NoRoom { all: usize },
    #[error("the proxy is being stopped")]
    Stopping,
    #[error("no decode instance is in service{0}")]
    NoDecode(String),
    #[error("no decode instance answered: {0}")]
    NoAnswer(String),
    #[error("{0}; try again later")]
    NoConnection(String),
}

impl Fault {
    pub fn status(&self) -> StatusCode {
        match self {
            Fault::NotJson(_) | Fault::BrokeOff(_) => StatusCode::BAD_REQUEST,
            Fault::TooLong { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Fault::TooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            Fault::Crowded { .. } | Fault::NoRoom { .. } => StatusCode::TOO_MANY_REQUESTS,
            Fault::NoDecode(_) | Fault::NoConnection(_) | Fault::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            Fault::NoAnswer(_) => StatusCode::BAD_GATEWAY,
        }
    }
}

/// Parsers speak of their own expectations; a caller wants the place.
fn whats_wrong(error: &serde_json::Error) -> String {
    use serde_json::error::Category;
    let place = format!("line {}, column {}", error.line(), error.column());
    match error.classify() {
        Category::Eof => format!("it ends too early, at {place}"),
        Category::Syntax => format!("it is no JSON from {place} on"),
        Category::Data => format!("it is another kind of value, at {place}"),
        Category::Io => error.to_string(),
    }
}

/// An error as clients of the API read it.
pub(crate) fn error(status: StatusCode, message: &str) -> Value {
    let kind = match status.as_u16() {
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "upstream_error",
    };
    json!({"error": {"message": message, "type": kind, "param": null, "code": status.as_u16()}})
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let status = self.status();
        let mut response = as_json(status, &error(status, &self.to_string()));
        if matches!(self, Fault::Stopping | Fault::TooSlow { .. }) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
