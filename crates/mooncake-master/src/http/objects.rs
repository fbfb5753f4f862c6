//! The HTTP page that lists objects with what an operator asks about them.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use mooncake_core::{KeysCursor, ObjectView, PinView};
use mooncake_http::reply::{INVALID_PARAMS, as_json, failed};
use mooncake_ids::Rid;
use serde::Serialize;

use super::query::{decode, parameter, shown};
use crate::machine::SLICE;
use crate::shared::Shared;

/// Objects of a page, unless another number is asked for, and most of them.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 10_000;

/// Places that one page looks at: an answer is not long in coming, however few keys have the prefix.
const LOOKED_AT_MAX: usize = 1 << 20;

/// Bytes of keys and names that are copied while the core is held once, and of one page: keys may be long.
const SLICE_BYTES: usize = 64 << 10;
const PAGE_BYTES: usize = 2 << 20;

#[derive(Debug, Serialize)]
struct Page {
    objects: Vec<Object>,
    /// For `from` of the next page; none: these were the last ones.
    next: Option<u32>,
}

/// An object as it was copied: it is told once the core is free.
struct Copied {
    key: Vec<u8>,
    size: u64,
    id: Rid,
    replicas: Vec<Replica>,
    tier: Option<String>,
    viewed: u8,
    protected_us: u64,
    pin: PinView,
}

#[derive(Debug, Serialize)]
struct Object {
    key: String,
    size_bytes: u64,
    /// None: it came before this master.
    age_seconds: Option<f64>,
    replicas: Vec<Replica>,
    /// Client that has it on a tier.
    tier: Option<String>,
    viewed_replicas: u8,
    protected_seconds: f64,
    pin: &'static str,
}

#[derive(Debug, Serialize)]
struct Replica {
    client: String,
    segment: String,
    state: &'static str,
}

/// Objects whose keys begin so, or the one with a key.
pub async fn list(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    let named = |name| parameter(query.as_deref(), name);
    let number = |name, default: usize| named(name).map_or(Ok(default), |text| text.parse().map_err(|_| name));
    let (limit, from) = match (number("limit", LIMIT), number("from", 0)) {
        (Ok(limit @ 1..), Ok(from)) => (limit.min(LIMIT_MAX), from),
        (Ok(0), _) | (Err(_), _) => return no_number("limit"),
        (_, Err(_)) => return no_number("from"),
    };
    let (copied, next) = match named("key") {
        Some(key) => (one(&shared, &decode(key)), None),
        None => some(&shared, &decode(named("prefix").unwrap_or_default()), limit, from).await,
    };
    let now = Instant::now();
    let ages: Vec<Option<f64>> = {
        let births = shared.births.lock();
        copied.iter().map(|object| births.age(object.id, now).map(|age| age.as_secs_f64())).collect()
    };
    let objects = copied.into_iter().zip(ages).map(|(object, age)| told(object, age)).collect();
    as_json(StatusCode::OK, &Page { objects, next })
}

fn no_number(name: &str) -> Response {
    let message = format!("{name}: a whole number is expected, as in /get_objects?{name}=100");
    failed(StatusCode::BAD_REQUEST, INVALID_PARAMS, &message)
}

fn one(shared: &Shared, key: &[u8]) -> Vec<Copied> {
    let found = shared.read(|core, now| core.object_of(now, key).map(|object| copied(&object)));
    found.into_iter().collect()
}

async fn some(shared: &Shared, prefix: &[u8], limit: usize, from: usize) -> (Vec<Copied>, Option<u32>) {
    let mut cursor = KeysCursor::at(u32::try_from(from).unwrap_or(u32::MAX));
    let (mut objects, mut bytes) = (Vec::new(), 0);
    for _ in 0..LOOKED_AT_MAX / SLICE {
        let most = bytes + SLICE_BYTES;
        let is_through = shared.read(|core, now| {
            core.objects_slice(
                now,
                &mut cursor,
                SLICE,
                |key| key.starts_with(prefix),
                |object| {
                    let object = copied(&object);
                    bytes += object.bytes();
                    objects.push(object);
                    objects.len() < limit && bytes < most
                },
            )
        });
        if is_through {
            return (objects, None);
        }
        if objects.len() >= limit || bytes >= PAGE_BYTES {
            break;
        }
        // Other pages have their turn meanwhile.
        tokio::task::yield_now().await;
    }
    (objects, Some(cursor.place()))
}

impl Copied {
    fn bytes(&self) -> usize {
        let names: usize = self.replicas.iter().map(|replica| replica.client.len() + replica.segment.len()).sum();
        size_of::<Copied>() + self.key.len() + names
    }
}

fn copied(object: &ObjectView<'_>) -> Copied {
    let replicas = object.memory.iter().map(|place| Replica {
        client: place.client.to_owned(),
        segment: place.segment.to_owned(),
        state: if place.is_live { "live" } else { "hidden" },
    });
    Copied {
        key: object.key.to_vec(),
        size: object.size,
        id: object.id,
        replicas: replicas.collect(),
        tier: object.tier.map(str::to_owned),
        viewed: object.viewed,
        protected_us: object.protected_us,
        pin: object.pin,
    }
}

fn told(object: Copied, age_seconds: Option<f64>) -> Object {
    Object {
        key: shown(&object.key),
        size_bytes: object.size,
        age_seconds,
        replicas: object.replicas,
        tier: object.tier,
        viewed_replicas: object.viewed,
        protected_seconds: object.protected_us as f64 / 1e6,
        pin: match object.pin {
            PinView::None => "none",
            PinView::Soft => "soft",
            PinView::Hard => "hard",
        },
    }
}
