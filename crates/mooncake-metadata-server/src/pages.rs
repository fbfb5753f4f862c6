//! The pages: values by their keys.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use crate::table::{ENTRY, TOTAL_MAX, Table, Written};

/// Longest value. Descriptions of engines with thousands of buffers have some hundred KiB.
const VALUE_MAX: usize = 16 << 20;

/// Longest key.
const KEY_MAX: usize = 4 << 10;

/// How long an engine has to show that it still listens.
const PROBE: Duration = Duration::from_millis(300);

/// Engines of one name that may have come and gone while one is being published.
const PROBES: usize = 4;

type Shared = Arc<Mutex<Table>>;

#[derive(Debug, Deserialize)]
struct Wanted {
    key: Option<String>,
}

pub fn router() -> Router {
    Router::new()
        .route("/metadata", get(read).put(write).delete(remove))
        .route("/health", get(async || (StatusCode::OK, "OK")))
        .layer(DefaultBodyLimit::max(VALUE_MAX))
        .with_state(Shared::default())
}

type BadRequest = (StatusCode, String);

type Asked = Result<Query<Wanted>, QueryRejection>;

fn key(asked: Asked) -> Result<String, BadRequest> {
    let bad = |what: String| (StatusCode::BAD_REQUEST, what);
    match asked {
        Ok(Query(wanted)) => match wanted.key.as_deref().map_or("", str::trim) {
            "" => Err(bad("metadata key is required".into())),
            key if key.len() > KEY_MAX => Err(bad(format!("a key has at most {KEY_MAX} bytes, not {}", key.len()))),
            key => Ok(key.to_owned()),
        },
        Err(error) => Err(bad(error.to_string())),
    }
}

async fn read(State(table): State<Shared>, asked: Asked) -> Response {
    let key = match key(asked) {
        Ok(key) => key,
        Err(bad) => return bad.into_response(),
    };
    match table.lock().get(&key) {
        Some(value) => ([(header::CONTENT_TYPE, "application/json; charset=utf-8")], value).into_response(),
        None => missing(),
    }
}

async fn write(State(table): State<Shared>, asked: Asked, value: Bytes) -> Response {
    let key = match key(asked) {
        Ok(key) => key,
        Err(bad) => return bad.into_response(),
    };
    let mut gone = None;
    for _ in 0..PROBES {
        // The check and the change are one step: of two engines that come at once, the second meets the first.
        let written = table.lock().set(&key, &value, gone.as_ref());
        match written {
            Written::Updated => return (StatusCode::OK, "metadata updated").into_response(),
            Written::Unchanged => return (StatusCode::OK, "metadata unchanged").into_response(),
            Written::Full => {
                let room = format!("there is room for {TOTAL_MAX} bytes, {ENTRY} of them for each entry");
                return (StatusCode::INSUFFICIENT_STORAGE, room).into_response();
            }
            Written::Taken(other) if still_listens(&other).await => break,
            Written::Taken(other) => {
                tracing::info!(key, "the engine of this name has gone; its address is replaced");
                gone = Some(other);
            }
        }
    }
    (StatusCode::BAD_REQUEST, "Duplicate rpc_meta key not allowed").into_response()
}

async fn remove(State(table): State<Shared>, asked: Asked) -> Response {
    match key(asked) {
        Ok(key) if table.lock().remove(&key) => (StatusCode::OK, "metadata deleted").into_response(),
        Ok(_) => missing(),
        Err(bad) => bad.into_response(),
    }
}

fn missing() -> Response {
    (StatusCode::NOT_FOUND, "metadata not found").into_response()
}

/// How an engine says where it is.
#[derive(Debug, Deserialize)]
struct RpcMeta {
    ip_or_host_name: String,
    rpc_port: u16,
}

/// Whether somebody accepts connections at the address that a value names. What names none counts as in use.
async fn still_listens(value: &Bytes) -> bool {
    let Ok(meta) = serde_json::from_slice::<RpcMeta>(value) else { return true };
    let probe = async {
        let host = meta.ip_or_host_name.trim_start_matches('[').trim_end_matches(']');
        for address in lookup_host((host, meta.rpc_port)).await? {
            if TcpStream::connect(address).await.is_ok() {
                return Ok(true);
            }
        }
        Ok::<bool, std::io::Error>(false)
    };
    matches!(timeout(PROBE, probe).await, Ok(Ok(true)))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn of_two_engines_of_one_name_that_come_at_once_one_is_refused() {
        let address = |port: u16| Bytes::from(format!(r#"{{"ip_or_host_name":"127.0.0.1","rpc_port":{port}}}"#));
        let (first, second) =
            (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let table = Shared::default();
        let put =
            |value: Bytes| write(State(table.clone()), Ok(Query(Wanted { key: Some("rpc_meta/e".into()) })), value);
        // Nobody listens at port 1: an engine that has gone.
        assert_eq!(put(address(1)).await.status(), StatusCode::OK);
        let engines = [&first, &second].map(|engine| address(engine.local_addr().unwrap().port()));
        let (one, other) = tokio::join!(put(engines[0].clone()), put(engines[1].clone()));
        let mut statuses = [one.status(), other.status()];
        statuses.sort();
        assert_eq!(statuses, [StatusCode::OK, StatusCode::BAD_REQUEST]);
    }
}
