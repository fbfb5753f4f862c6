//! The HTTP metadata server: a small store in which transfer engines publish
//! how to reach them. `GET`, `PUT` and `DELETE` of `/metadata?key=...`, values
//! as opaque bytes, in memory only.
//!
//! An engine's address (a key with `rpc_meta` in it) is not overwritten while
//! the engine that published it still listens there: two engines of one name
//! would be told apart by chance. One that has gone is replaced, so that a
//! crashed engine can come back under its name.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use mooncake_os::Guarded;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::master::{StartError, bind};

/// Longest value. Descriptions of engines with thousands of buffers have some hundred KiB.
const VALUE_MAX: usize = 16 << 20;

/// Longest key.
const KEY_MAX: usize = 4 << 10;

/// Bytes of all entries together.
const TOTAL_MAX: usize = 256 << 20;

/// What an entry takes besides its key and its value.
const ENTRY: usize = 128;

/// How long an engine has to show that it still listens.
const PROBE: Duration = Duration::from_millis(300);

/// Engines of one name that may have come and gone while one is being published.
const PROBES: usize = 4;

/// A metadata server that runs until it is dropped.
#[derive(Debug)]
pub struct MetadataServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl MetadataServer {
    /// Listens at an address, inside a tokio runtime. Port 0 is any free one.
    pub fn open(address: SocketAddr) -> Result<MetadataServer, StartError> {
        let listener = bind("the metadata server", "port", address.ip(), address.port())?;
        MetadataServer::start(listener).map_err(|source| StartError::System { what: "the metadata server", source })
    }

    /// Serves on a listener, inside a tokio runtime.
    pub(crate) fn start(listener: TcpListener) -> std::io::Result<MetadataServer> {
        let address = listener.local_addr()?;
        let router = router();
        let pages = move || (router.clone(), true);
        let task = tokio::spawn(mooncake_http::accept(pages, Guarded::new(listener), mooncake_http::Limits::default()));
        Ok(MetadataServer { address, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetadataServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Shared = Arc<Mutex<Table>>;

#[derive(Debug, Default)]
struct Table {
    values: HashMap<String, Bytes>,
    /// Of all entries, as [`size`] counts them.
    bytes: usize,
}

/// What became of a value.
#[derive(Debug, PartialEq, Eq)]
enum Written {
    Updated,
    Unchanged,
    /// An engine's address, and this other one stands there.
    Taken(Bytes),
    Full,
}

impl Table {
    /// Sets a value. An engine's address takes no other one's place than that of `gone`.
    fn set(&mut self, key: &str, value: &Bytes, gone: Option<&Bytes>) -> Written {
        let old = self.values.get(key);
        if is_address(key)
            && let Some(old) = old
        {
            if old == value {
                return Written::Unchanged;
            }
            if Some(old) != gone {
                return Written::Taken(old.clone());
            }
        }
        let bytes = self.bytes - old.map_or(0, |old| size(key, old)) + size(key, value);
        if bytes > TOTAL_MAX {
            return Written::Full;
        }
        self.bytes = bytes;
        // A copy: the value is a part of the request, and would keep all of it.
        self.values.insert(key.to_owned(), Bytes::copy_from_slice(value));
        Written::Updated
    }

    fn remove(&mut self, key: &str) -> bool {
        let Some(value) = self.values.remove(key) else { return false };
        self.bytes -= size(key, &value);
        true
    }
}

fn size(key: &str, value: &Bytes) -> usize {
    key.len() + value.len() + ENTRY
}

/// Whether an engine says under this key where it is.
fn is_address(key: &str) -> bool {
    key.contains("rpc_meta")
}

#[derive(Debug, Deserialize)]
struct Wanted {
    key: Option<String>,
}

fn router() -> Router {
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
    match table.lock().values.get(&key).cloned() {
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
    use super::*;

    #[test]
    fn the_table_counts_what_it_holds_and_is_bounded() {
        let mut table = Table::default();
        assert_eq!(table.set("key", &Bytes::from_static(b"12345"), None), Written::Updated);
        assert_eq!(table.set("key", &Bytes::from_static(b"1"), None), Written::Updated);
        assert_eq!(table.bytes, 4 + ENTRY);
        assert_eq!(table.set("big", &Bytes::from(vec![0; TOTAL_MAX]), None), Written::Full);
        assert!(table.remove("key") && !table.remove("key"));
        assert_eq!(table.bytes, 0);
    }

    #[test]
    fn empty_entries_count_for_what_they_really_take() {
        let mut table = Table { bytes: TOTAL_MAX - 10 * ENTRY, ..Table::default() };
        let empty = Bytes::new();
        let taken = (0..100).take_while(|number: &u8| table.set(&number.to_string(), &empty, None) == Written::Updated);
        assert_eq!(taken.count(), 9, "the keys have a byte too");
    }

    #[test]
    fn a_value_keeps_nothing_of_what_it_came_with() {
        let request = Bytes::from(vec![7; 64 << 10]);
        let mut table = Table::default();
        assert_eq!(table.set("key", &request.slice(100..101), None), Written::Updated);
        assert!(request.is_unique(), "one byte holds the whole request");
        assert_eq!(table.values["key"], [7u8][..]);
    }

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
