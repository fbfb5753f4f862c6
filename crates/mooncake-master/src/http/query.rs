//! HTTP pages that tell where objects are and how full segments are.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use mooncake_core::{Found, SegmentState, Sight};
use mooncake_http::reply::{INVALID_PARAMS, as_json, failed, text, with_type};
use serde_json::{Map, Value, json};

use crate::machine::inspect::Inspected;
use crate::shared::Shared;

/// Most keys of one page.
const KEYS_MAX: usize = 65_536;

const NOT_FOUND: i32 = -704;
/// As Mooncake names it; scripts compare with it.
const NOT_FOUND_NAME: &str = "OBJECT_NOT_FOUND";

/// Replicas of one object. As in Mooncake, the key is taken verbatim, and asking counts as an existence query,
/// which protects the object. A key that is not there so is decoded: it may be as `/get_all_keys` prints it.
pub async fn key(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    let Some(key) = parameter(query.as_deref(), "key").filter(|key| !key.is_empty()) else {
        return lacks("/query_key?key=KEY");
    };
    let decoded = decode(key);
    let mut inspected = Inspected::default();
    shared.read(|core, now| {
        let key = if core.peek(key.as_bytes()).is_some() { key.as_bytes() } else { &decoded[..] };
        core.describe(now, Sight::Tiers, std::iter::once(key), |_| {});
        inspected.add(core, key);
    });
    match &inspected.found[0] {
        Some(found) => {
            let memory = replicas(&inspected, found).memory;
            as_json(StatusCode::OK, &json!({"success": true, "data": memory}))
        }
        None => failed(StatusCode::NOT_FOUND, NOT_FOUND, NOT_FOUND_NAME),
    }
}

/// Replicas of several objects; protects nothing.
pub async fn keys(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    let decoded = decode(parameter(query.as_deref(), "keys").unwrap_or_default());
    let keys: Vec<&[u8]> = decoded.split(|byte| *byte == b',').filter(|key| !key.is_empty()).collect();
    if keys.is_empty() {
        let error = "No keys provided. Use ?keys=key1,key2,...";
        return as_json(StatusCode::BAD_REQUEST, &json!({"success": false, "error": error}));
    }
    if keys.len() > KEYS_MAX {
        let error = format!("{} keys, the limit is {KEYS_MAX}", keys.len());
        return as_json(StatusCode::BAD_REQUEST, &json!({"success": false, "error": error}));
    }
    let inspected = Inspected::of(&*shared, &keys);
    let mut data = Map::new();
    for (key, found) in keys.iter().zip(&inspected.found) {
        let entry = match found {
            Some(found) => answer(Ok(replicas(&inspected, found))),
            None => answer(Err(NOT_FOUND_NAME)),
        };
        data.insert(shown(key), entry);
    }
    as_json(StatusCode::OK, &json!({"success": true, "data": data}))
}

/// The entry of a key. Fields that have no value are there all the same: readers index them.
fn answer(found: Result<Replicas, &str>) -> Value {
    let error = found.as_ref().err();
    let Replicas { memory, local_disk, disk } = found.clone().unwrap_or_default();
    let some = |values: Vec<Value>| (!values.is_empty()).then_some(values);
    json!({
        "ok": found.is_ok(),
        "error": error,
        "values": found.is_ok().then_some(memory),
        "disk_values": some(disk),
        "local_disk_values": some(local_disk),
        "nof_values": null,
    })
}

/// How full the segments of one name are.
pub async fn segment(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    let Some(name) = parameter(query.as_deref(), "segment").filter(|name| !name.is_empty()) else {
        return lacks("/query_segment?segment=NAME");
    };
    let sums = shared.read(|core, _| {
        let live = core.segments_named(name).filter(|view| view.state == SegmentState::Live);
        live.fold(None, |sums: Option<(u64, u64)>, view| {
            let (used, capacity) = sums.unwrap_or_default();
            Some((used + view.used, capacity + view.capacity))
        })
    });
    match sums {
        Some((used, capacity)) => text(format!("{name}\nUsed(bytes): {used}\nCapacity(bytes) : {capacity}\n")),
        None => {
            with_type(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; version=0.0.4", "Failed to query segment".into())
        }
    }
}

/// Replicas of one object, by what they lie in.
#[derive(Debug, Clone, Default)]
struct Replicas {
    memory: Vec<Value>,
    local_disk: Vec<Value>,
    /// On a file system that clients share.
    disk: Vec<Value>,
}

fn replicas(inspected: &Inspected, found: &Found) -> Replicas {
    let Replicas { mut memory, mut local_disk, mut disk } = Replicas::default();
    for replica in &found.replicas {
        let Some(place) = inspected.segments.get(&replica.extent.segment) else { continue };
        if let Some(file_path) = place.file_path(replica.extent.offset) {
            disk.push(json!({"file_path": file_path, "object_size": replica.extent.length}));
            continue;
        }
        match place.tier_of {
            Some(owner) => local_disk.push(json!({
                "client_id": owner.0.to_string(),
                "object_size": replica.extent.length,
                "transport_endpoint": place.name,
            })),
            None => memory.push(json!({
                "size_": replica.extent.length,
                // Its place in the segment: there are no addresses here that mean anything to another process.
                "buffer_address_": replica.extent.offset,
                "protocol_": if place.endpoint().unix_socket.is_empty() { "tcp" } else { "tcp,shm" },
                "transport_endpoint_": place.name,
            })),
        }
    }
    Replicas { memory, local_disk, disk }
}

/// A parameter as it stands in the address.
pub(crate) fn parameter<'q>(query: Option<&'q str>, name: &str) -> Option<&'q str> {
    let pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// A page that was asked for without what it is about.
pub(crate) fn lacks(usage: &str) -> Response {
    failed(StatusCode::BAD_REQUEST, INVALID_PARAMS, &format!("a parameter is missing: {usage}"))
}

/// A key as pages tell it, in one line of UTF-8 that [`decode`] makes the key of again: keys are bytes, and most are
/// plain text, which stays as it is.
pub(crate) fn shown(key: &[u8]) -> String {
    let mut shown = String::with_capacity(key.len());
    for chunk in key.utf8_chunks() {
        for (at, one) in chunk.valid().char_indices() {
            let mut ahead = chunk.valid().bytes().skip(at + 1);
            let reads_as_code = one == '%' && ahead.next().and_then(hex).and(ahead.next().and_then(hex)).is_some();
            if reads_as_code || one.is_control() {
                let mut bytes = [0; 4];
                one.encode_utf8(&mut bytes).bytes().for_each(|byte| shown += &format!("%{byte:02X}"));
            } else {
                shown.push(one);
            }
        }
        chunk.invalid().iter().for_each(|byte| shown += &format!("%{byte:02X}"));
    }
    shown
}

/// Undoes percent-encoding; what is none of it stays.
pub(crate) fn decode(text: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(text).collect()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_one_line_of_its_own_from_which_it_is_read_again() {
        let keys = [
            (&b"plain/key@1"[..], "plain/key@1"),
            ("\u{e4}\u{4e2d}".as_bytes(), "\u{e4}\u{4e2d}"),
            (b"a\nb\0c\x7f", "a%0Ab%00c%7F"),
            (b"\xff\xfe", "%FF%FE"),
            (b"100%", "100%"),
            (b"%41", "%2541"),
            (b"%4\n", "%4%0A"),
            (b"%%41", "%%2541"),
            ("\u{85}".as_bytes(), "%C2%85"),
        ];
        for (key, text) in keys {
            assert_eq!(shown(key), text);
            assert_eq!(decode(text), key, "{text}");
        }
    }

    #[test]
    fn percent_encoding_is_undone_and_all_else_stays() {
        for (text, bytes) in [
            ("a%2Fb%2c%2B+", &b"a/b,++"[..]),
            ("%", b"%"),
            ("%4", b"%4"),
            ("%zz%41", b"%zzA"),
            ("%%41", b"%A"),
            ("%ff", b"\xff"),
        ] {
            assert_eq!(decode(text), bytes, "{text}");
        }
    }
}
