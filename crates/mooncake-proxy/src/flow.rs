//! The way of a request: computed by a prefill instance, answered by a decode instance.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use mooncake_http::reply::with_type;
use tokio::time::timeout;

use crate::address::InstanceAddress;
use crate::admission::Turn;
use crate::fault::Fault;
use crate::instance::{Kind, Lease};
use crate::peer_to_peer::Transfer;
use crate::prefix::Prompt;
use crate::proxy::Proxy;
use crate::relay::Relay;
use crate::request::Fields;
use crate::scheduling::Route;
use crate::upstream::{Failure, for_instances, whole, without_connection};

/// Instances that are asked for one request, one after the other.
pub(crate) const ATTEMPTS: usize = 3;

/// What an instance says with an error that is passed on comes within that.
const PATIENCE: Duration = Duration::from_secs(5);

/// `/v1/completions` and `/v1/chat/completions`.
pub(crate) async fn generate(State(proxy): State<Arc<Proxy>>, request: Request) -> Response {
    let began = Instant::now();
    let path = request.uri().path().to_owned();
    let response = match proxy.generate(request, began).await {
        Ok(response) => response,
        Err(fault) => {
            tracing::debug!(path, %fault, "a request has no answer");
            fault.into_response()
        }
    };
    proxy.counts.answered(response.status(), began.elapsed());
    tracing::debug!(path, status = response.status().as_u16(), after = ?began.elapsed(), "answered");
    response
}

/// What the prompt's computation left for the decode instance.
enum Prefilled {
    /// Nothing: it computes the prompt.
    Not,
    /// Blocks in the pool that it finds by itself.
    Itself,
    /// Blocks that it fetches, with these parameters.
    Fetch(String),
    /// The request is wrong: the answer.
    Refused(Response),
}

/// A request on its way.
struct Asked<'a> {
    path: &'a str,
    headers: HeaderMap,
    fields: Fields<'a>,
    prompt: Prompt,
    name: String,
    began: Instant,
}

/// An attempt that came to nothing: why, and what the instance says itself.
struct Missed {
    failure: Failure,
    said: Option<Response>,
}

impl From<Failure> for Missed {
    fn from(failure: Failure) -> Missed {
        Missed { failure, said: None }
    }
}

impl Proxy {
    async fn generate(self: &Arc<Proxy>, request: Request, began: Instant) -> Result<Response, Fault> {
        if self.is_stopping.load(Ordering::Relaxed) {
            return Err(Fault::Stopping);
        }
        let (head, body) = request.into_parts();
        let body = self.bodies.read(body).await?;
        let fields = Fields::of(&body.bytes)?;
        let turn = self.admission.enter().await?;
        self.counts.queued(began.elapsed());
        let name = self.name_request();
        let id = HeaderValue::try_from(&name).expect("hexadecimal digits");
        let headers = for_instances(&head.headers, self.authorization.as_ref(), id);
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let prompt = self.scheduler.prompt(&fields);
        let asked = Asked { path, headers, fields, prompt, name, began };
        let (is_computed, fetch) = match self.prefill(&asked).await {
            Prefilled::Refused(response) => return Ok(response),
            Prefilled::Not => (false, None),
            Prefilled::Itself => (true, None),
            Prefilled::Fetch(parameters) => (true, Some(asked.fields.for_decode(&parameters).into())),
        };
        self.decode(&asked, &body.bytes, is_computed, fetch, turn).await
    }

    /// Has the prompt computed, by whichever instance does it. If none does, the decode instance computes it.
    async fn prefill(&self, asked: &Asked<'_>) -> Prefilled {
        let began = Instant::now();
        let decode = self.fleet.available(Kind::Decode, &[]);
        let mut tried = Vec::new();
        while tried.len() < ATTEMPTS {
            let available = self.fleet.available(Kind::Prefill, &tried);
            let lease = match self.scheduler.prefill(&available, &decode, &asked.prompt) {
                Route::Prefill(lease) => lease,
                Route::None => break,
                Route::DecodeOnly => {
                    self.counts.decode_only(true);
                    return Prefilled::Not;
                }
            };
            tried.push(lease.instance.number);
            let prefilled = tokio::select! {
                prefilled = self.prefill_at(&lease, asked) => prefilled,
                () = lease.instance.hangs.notified() => Err(Failure::Hangs),
            };
            match prefilled {
                Ok(prefilled) => {
                    lease.instance.succeeded();
                    self.counts.prefilled(began.elapsed());
                    return prefilled;
                }
                Err(failure) => self.note(&lease, &failure),
            }
        }
        self.counts.decode_only(false);
        Prefilled::Not
    }

    async fn prefill_at(&self, lease: &Lease, asked: &Asked<'_>) -> Result<Prefilled, Failure> {
        let transfer = Transfer::prepare(&self.upstream, &lease.instance, &asked.name).await?;
        let mut headers = asked.headers.clone();
        if let Some(transfer) = &transfer {
            transfer.name_rank(&mut headers);
        }
        let body = asked.fields.for_prefill(transfer.as_ref().map(Transfer::for_prefill).as_deref());
        let (authority, patience) = (lease.instance.address.authority(), self.options.prefill_timeout);
        let answer = self.upstream.post(&authority, asked.path, headers, body.into(), patience).await?;
        let status = answer.status();
        if is_of_the_instance(status) {
            return Err(Failure::Status(status));
        }
        if status.is_client_error() {
            return Ok(Prefilled::Refused(passed_on(answer, patience).await?));
        }
        // The answer's one token is of no use, but it says that the computation is over.
        whole(answer, patience).await?;
        Ok(transfer.map_or(Prefilled::Itself, |transfer| Prefilled::Fetch(transfer.for_decode())))
    }

    /// Passes on the answer of the first decode instance that gives one. `fetch` is the body for the first that is asked:
    /// what it did not fetch may be gone, and the others compute the prompt themselves.
    async fn decode(
        self: &Arc<Proxy>,
        asked: &Asked<'_>,
        body: &Bytes,
        is_computed: bool,
        mut fetch: Option<Bytes>,
        turn: Turn,
    ) -> Result<Response, Fault> {
        let mut tried = Vec::new();
        let (mut last, mut said) = (None, None);
        while tried.len() < ATTEMPTS {
            let mut available = self.fleet.available(Kind::Decode, &tried);
            if available.is_empty() && may_be_asked_again(last.as_ref()) {
                // There is no other one, and this one had only its connection closed.
                available = self.fleet.available(Kind::Decode, &[]);
            }
            let Some(mut lease) = self.scheduler.decode(&available, &asked.prompt, !is_computed) else { break };
            tried.push(lease.instance.number);
            let body = fetch.take().unwrap_or_else(|| body.clone());
            let begun = tokio::select! {
                begun = self.decode_at(&lease, asked, body) => begun,
                () = lease.instance.hangs.notified() => Err(Failure::Hangs.into()),
            };
            match begun {
                Ok(begun) => {
                    self.counts.first_byte(asked.began.elapsed());
                    lease.computed();
                    return Ok(begun.relay(self, lease, turn));
                }
                Err(missed) => {
                    self.note(&lease, &missed.failure);
                    last = Some((missed.failure, lease.instance.address.clone()));
                    said = missed.said.or(said);
                }
            }
        }
        match (said, last) {
            (Some(said), _) => Ok(said),
            (None, Some((failure, address))) => Err(Fault::NoAnswer(format!("{failure} at {address}"))),
            (None, None) if self.fleet.all().iter().any(|one| one.kind == Kind::Decode) => {
                Err(Fault::NoDecode(": all of them have failed lately".into()))
            }
            (None, None) => Err(Fault::NoDecode(": none was added".into())),
        }
    }

    async fn decode_at(&self, lease: &Lease, asked: &Asked<'_>, body: Bytes) -> Result<Begun, Missed> {
        let (authority, patience) = (lease.instance.address.authority(), self.options.request_timeout);
        let answer = self.upstream.post(&authority, asked.path, asked.headers.clone(), body, patience).await?;
        if is_of_the_instance(answer.status()) {
            let failure = Failure::Status(answer.status());
            return Err(Missed { failure, said: passed_on(answer, PATIENCE).await.ok() });
        }
        // Servers send the head of a stream before they have begun: until a byte is there, another one can take over.
        let (head, mut from) = answer.into_parts();
        let mut first = Bytes::new();
        while first.is_empty() {
            match timeout(patience, from.frame()).await {
                Ok(Some(Ok(frame))) => first = frame.into_data().unwrap_or_default(),
                Ok(Some(Err(error))) => return Err(Failure::BrokeOff(error.to_string()).into()),
                Ok(None) => break,
                Err(_) => return Err(Failure::TimedOut(patience).into()),
            }
        }
        Ok(Begun { status: head.status, headers: head.headers, first, from })
    }

    /// `/v1/models`, as a decode instance says it.
    pub async fn models(&self, headers: &HeaderMap) -> Result<Response, Fault> {
        let id = HeaderValue::try_from(self.name_request()).expect("hexadecimal digits");
        let headers = for_instances(headers, self.authorization.as_ref(), id);
        let patience = self.options.connect_timeout;
        let mut fault = Fault::NoDecode(String::new());
        for instance in self.fleet.available(Kind::Decode, &[]).iter().take(ATTEMPTS) {
            let address = &instance.address;
            match self.upstream.get_with(&address.authority(), "/v1/models", &headers, patience).await {
                Ok((status, body)) => return Ok(with_type(status, "application/json", body.into())),
                Err(failure) => fault = Fault::NoAnswer(format!("{failure} at {address}")),
            }
        }
        Err(fault)
    }

    fn note(&self, lease: &Lease, failure: &Failure) {
        let instance = &lease.instance;
        tracing::debug!(instance = %instance.address, kind = instance.kind.name(), %failure, "a request failed there");
        self.counts.retried(instance.kind);
        match failure {
            // It has enough to do; that is no fault.
            Failure::Status(StatusCode::TOO_MANY_REQUESTS) => {}
            // That is known.
            Failure::Hangs => {}
            failure => instance.failed(Instant::now(), &failure.to_string(), failure.is_gone()),
        }
        if failure.is_gone() {
            // Whoever comes back at that address has an empty cache.
            self.scheduler.forget(instance.number);
        }
    }
}

/// A decode instance's answer, of which the first bytes are there.
struct Begun {
    status: StatusCode,
    headers: HeaderMap,
    first: Bytes,
    from: Incoming,
}

impl Begun {
    fn relay(self, proxy: &Arc<Proxy>, lease: Lease, turn: Turn) -> Response {
        let Begun { status, mut headers, first, from } = self;
        without_connection(&mut headers);
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_events = kind.starts_with("text/event-stream");
        if is_events {
            // An error may be added.
            headers.remove(header::CONTENT_LENGTH);
        }
        let stall = proxy.options.stall_timeout;
        let relay = Relay::new(from, first, is_events, stall, lease, turn, proxy.clone());
        let mut response = Response::new(Body::new(relay));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
}

/// Whether an attempt failed in a way that says nothing about the next one at the same instance: a server that closes an idle
/// connection may do so just when a request is sent over it.
fn may_be_asked_again(last: Option<&(Failure, InstanceAddress)>) -> bool {
    matches!(last, Some((Failure::BrokeOff(_), _)))
}

/// Whether an answer is about the instance, and another one may have a better.
fn is_of_the_instance(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS)
}

/// A small answer, whole.
pub(crate) async fn passed_on(answer: axum::http::Response<Incoming>, patience: Duration) -> Result<Response, Failure> {
    let (status, mut headers) = (answer.status(), answer.headers().clone());
    without_connection(&mut headers);
    let mut response = Response::new(Body::from(whole(answer, patience).await?));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}
