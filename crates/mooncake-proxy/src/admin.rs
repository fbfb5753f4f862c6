//! Pages that add and remove instances, and pages of health, metrics and status.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use mooncake_http::page::{assemble, served};
use mooncake_http::reply::{as_json, text};
use serde::Deserialize;
use serde_json::json;
use subtle::ConstantTimeEq;

use crate::instances::address::InstanceAddress;
use crate::instances::instance::Kind;
use crate::instances::peer_to_peer::{Engines, engines};
use crate::proxy::Proxy;

static PAGE: LazyLock<String> = LazyLock::new(|| assemble(include_str!("page.html")));

/// The body of `/instances/add` and `/instances/remove`.
#[derive(Deserialize)]
struct Change {
    #[serde(rename = "type")]
    kind: String,
    instance: String,
    bootstrap_port: Option<u16>,
}

type Refusal = (StatusCode, String);

pub(crate) async fn add(State(proxy): State<Arc<Proxy>>, headers: HeaderMap, body: Body) -> Response {
    let added = async {
        let (kind, address) = proxy.read_change(&headers, body).await?;
        let unfit = |why: String| (StatusCode::BAD_REQUEST, why);
        proxy.probe(&address).await.map_err(|why| unfit(format!("{address}: {why}")))?;
        let of_it = match address.bootstrap() {
            Some(bootstrap) if kind == Kind::Prefill => engines(&proxy.upstream, &bootstrap).await,
            _ => Ok(Engines::new()),
        };
        let of_it = of_it.map_err(|why| unfit(format!("{address}: {why}")))?;
        let instance = proxy.fleet.add(kind, address.clone());
        let known = || (StatusCode::BAD_REQUEST, format!("{address} is in {}_instances already", kind.name()));
        let instance = instance.ok_or_else(known)?;
        instance.set_engines(of_it);
        instance.is_proven.store(true, Ordering::Relaxed);
        tracing::info!(instance = %address, kind = kind.name(), "added");
        Ok(format!("Added {address} to {}_instances.", kind.name()))
    };
    said(added.await)
}

pub(crate) async fn remove(State(proxy): State<Arc<Proxy>>, headers: HeaderMap, body: Body) -> Response {
    let removed = async {
        let (kind, address) = proxy.read_change(&headers, body).await?;
        let unknown = || (StatusCode::NOT_FOUND, format!("{address} is not in {}_instances", kind.name()));
        let instance = proxy.fleet.remove(kind, &address).ok_or_else(unknown)?;
        proxy.scheduler.forget(instance.number);
        tracing::info!(instance = %address, kind = kind.name(), in_flight = instance.under_way(), "removed");
        Ok(format!("Removed {address} from {}_instances.", kind.name()))
    };
    said(removed.await)
}

fn said(result: Result<String, Refusal>) -> Response {
    match result {
        Ok(message) => as_json(StatusCode::OK, &json!({ "message": message })),
        Err((status, detail)) => as_json(status, &json!({ "detail": detail })),
    }
}

pub(crate) async fn health(State(proxy): State<Arc<Proxy>>) -> Response {
    let why = match (proxy.is_stopping.load(Ordering::Relaxed), proxy.fleet.has_well(Kind::Decode)) {
        (true, _) => "the proxy is being stopped",
        (false, false) => "no decode instance is in service",
        (false, true) => "ok",
    };
    let status = if why == "ok" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let all = proxy.fleet.all();
    let of = |kind| all.iter().filter(|one| one.kind == kind).count();
    let well = |kind| all.iter().filter(|one| one.kind == kind && one.is_well()).count();
    as_json(
        status,
        &json!({
            "status": why, "prefill_instances": of(Kind::Prefill), "decode_instances": of(Kind::Decode),
            "prefill_in_service": well(Kind::Prefill), "decode_in_service": well(Kind::Decode),
        }),
    )
}

pub(crate) async fn metrics(State(proxy): State<Arc<Proxy>>) -> Response {
    text(proxy.metrics_page())
}

pub(crate) async fn status(State(proxy): State<Arc<Proxy>>) -> Response {
    as_json(StatusCode::OK, &proxy.status())
}

pub(crate) async fn page() -> Response {
    served(&PAGE)
}

impl Proxy {
    /// Checks the key before anything else is looked at.
    async fn read_change(&self, headers: &HeaderMap, body: Body) -> Result<(Kind, InstanceAddress), Refusal> {
        let Some(key) = &self.options.admin_key else {
            let why = "ADMIN_API_KEY is not set where the proxy was started: instances cannot be changed";
            return Err((StatusCode::INTERNAL_SERVER_ERROR, why.into()));
        };
        let given =
            headers.get("x-api-key").ok_or((StatusCode::UNPROCESSABLE_ENTITY, "X-API-Key is missing".into()))?;
        if !bool::from(given.as_bytes().ct_eq(key.as_bytes())) {
            return Err((StatusCode::FORBIDDEN, "X-API-Key is not the key of this proxy".into()));
        }
        let bad = |why: String| (StatusCode::BAD_REQUEST, why);
        let body = self.changes.read(body).await.map_err(|fault| (fault.status(), fault.to_string()))?;
        let change: Change = serde_json::from_slice(&body.bytes).map_err(|error| bad(error.to_string()))?;
        let kind = match &*change.kind {
            "prefill" => Kind::Prefill,
            "decode" => Kind::Decode,
            other => return Err(bad(format!("{other:?} is no type: prefill or decode"))),
        };
        let address: InstanceAddress = change.instance.parse().map_err(|error| bad(format!("{error}")))?;
        Ok((kind, address.or_bootstrap(change.bootstrap_port)))
    }
}
