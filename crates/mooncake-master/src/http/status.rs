//! The page for people, what it shows, and probes.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use mooncake_http::page::{assemble, served};
use mooncake_http::reply::{as_json, plain, with_type};

use super::INDEX;
use crate::shared::Shared;
use crate::status;

static PAGE: LazyLock<String> = LazyLock::new(|| assemble(include_str!("page.html")));

/// The page for a browser, the list of pages for others.
pub async fn page(headers: HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|accepts| accepts.to_str().ok()).unwrap_or_default();
    if !accepts.contains("text/html") {
        return plain(INDEX.to_owned());
    }
    let mut page = served(&PAGE);
    page.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
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
