//! The page for people, what it shows, and probes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use mooncake_http::reply::{as_json, plain, with_type};

use super::INDEX;
use crate::shared::Shared;
use crate::status;

const PAGE: &str = include_str!("page.html");

/// What the page may do: nothing but ask this master, and be itself.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page for a browser, the list of pages for others.
pub async fn page(headers: HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|accepts| accepts.to_str().ok()).unwrap_or_default();
    if !accepts.contains("text/html") {
        return plain(INDEX.to_owned());
    }
    let mut page = with_type(StatusCode::OK, "text/html; charset=utf-8", Body::from(PAGE));
    let headers = page.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    page
}

/// Everything, as JSON.
pub async fn status(State(shared): State<Arc<Shared>>) -> Response {
    as_json(StatusCode::OK, &status::read(&shared))
}

/// A core that cannot be asked for so long will answer no call any more.
const CORE_SILENCE_MAX: Duration = Duration::from_secs(60);

/// Whether it may still serve. Its core is asked each two seconds for what pages show.
pub async fn alive(State(shared): State<Arc<Shared>>) -> Response {
    match shared.history.lock().silence(Instant::now()) {
        Some(silence) if silence > CORE_SILENCE_MAX => {
            not_ready(&format!("the core has not answered for {} s", silence.as_secs()))
        }
        _ => plain("ok\n".to_owned()),
    }
}

/// Whether calls are answered.
pub async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    match shared.log.is_closed() {
        true => not_ready("the master stops"),
        false => plain("ok\n".to_owned()),
    }
}

/// They are not, and why.
pub fn not_ready(why: &str) -> Response {
    with_type(StatusCode::SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", format!("{why}\n").into())
}
