//! The way of a request: computed by a prefill instance, answered by a decode instance.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use mooncake_http::reply::with_type;
use tokio::time::timeout;

use crate::admission::Turn;
use crate::fault::Fault;
use crate::instance::{Kind, Lease};
use crate::peer_to_peer;
use crate::proxy::Proxy;
use crate::relay::Relay;
use crate::request::Fields;
use crate::upstream::{Failure, for_instances, whole, without_connection};

/// Instances that are asked for one request, one after the other.
pub(crate) const ATTEMPTS: usize = 3;

/// `/v1/completions` and `/v1/chat/completions`.
pub(crate) async fn generate(State(proxy): State<Arc<Proxy>>, request: Request) -> Response {
    let began = Instant::now();
    let response = match proxy.generate(request, began).await {
        Ok(response) => response,
        Err(fault) => fault.into_response(),
    };
    proxy.counts.answered(response.status(), began.elapsed());
    response
}

/// What the prompt's computation left for the decode instance.
enum Prefilled {
    /// Nothing, or blocks in the pool that it finds by itself.
    Itself,
    /// Blocks that it fetches, with these parameters.
    Fetch(String),
    /// The request is wrong: the answer.
    Refused(Response),
}

impl Proxy {
    async fn generate(&self, request: Request, began: Instant) -> Result<Response, Fault> {
        let (head, body) = request.into_parts();
        let body = self.read(body).await?;
        let fields = Fields::of(&body)?;
        let turn = self.admission.enter().await?;
        self.counts.queued(began.elapsed());
        let name = self.name_request();
        let id = HeaderValue::try_from(&name).expect("hexadecimal digits");
        let headers = for_instances(&head.headers, self.authorization.as_ref(), id);
        let fetch = match self.prefill(&head, &headers, &fields, &name).await {
            Prefilled::Refused(response) => return Ok(response),
            Prefilled::Itself => None,
            Prefilled::Fetch(parameters) => Some(fields.for_decode(&parameters).into()),
        };
        self.decode(&head, &headers, &body, fetch, turn, began).await
    }

    async fn read(&self, body: Body) -> Result<Bytes, Fault> {
        let (most, patience) = (self.options.body_max, self.options.body_timeout);
        match timeout(patience, Limited::new(body, most).collect()).await {
            Ok(Ok(whole)) => Ok(whole.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Fault::TooLong { most }),
            Ok(Err(error)) => Err(Fault::BrokeOff(error.to_string())),
            Err(_) => Err(Fault::TooSlow { seconds: patience.as_secs() }),
        }
    }

    /// Has the prompt computed, by whichever instance does it. If none does, the decode instance computes it.
    async fn prefill(&self, head: &Parts, headers: &HeaderMap, fields: &Fields<'_>, name: &str) -> Prefilled {
        let blocks = self.scheduler.blocks(fields.prompt());
        let began = Instant::now();
        let mut tried = Vec::new();
        while tried.len() < ATTEMPTS {
            let available = self.fleet.available(Kind::Prefill, &tried);
            let Some(lease) = self.scheduler.choose(&available, &blocks) else { break };
            tried.push(lease.instance.number);
            match self.prefill_at(&lease, head, headers, fields, name).await {
                Ok(prefilled) => {
                    lease.instance.succeeded();
                    self.counts.prefilled(began.elapsed());
                    return prefilled;
                }
                Err(failure) => self.note(&lease, &failure),
            }
        }
        self.counts.decode_only();
        Prefilled::Itself
    }

    async fn prefill_at(
        &self,
        lease: &Lease,
        head: &Parts,
        headers: &HeaderMap,
        fields: &Fields<'_>,
        name: &str,
    ) -> Result<Prefilled, Failure> {
        let transfer = peer_to_peer::Transfer::prepare(&self.upstream, &lease.instance.address, name).await?;
        let body = fields.for_prefill(transfer.as_ref().map(peer_to_peer::Transfer::for_prefill).as_deref());
        let (authority, path) = (lease.instance.address.authority(), head.uri.path());
        let patience = self.options.prefill_timeout;
        let answer = self.upstream.post(&authority, path, headers, body.into(), patience).await?;
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
        &self,
        head: &Parts,
        headers: &HeaderMap,
        body: &Bytes,
        mut fetch: Option<Bytes>,
        turn: Turn,
        began: Instant,
    ) -> Result<Response, Fault> {
        let mut tried = Vec::new();
        let mut last = None;
        while tried.len() < ATTEMPTS {
            let available = self.fleet.available(Kind::Decode, &tried);
            let Some(lease) = self.scheduler.choose(&available, &[]) else { break };
            tried.push(lease.instance.number);
            let body = fetch.take().unwrap_or_else(|| body.clone());
            match self.decode_at(&lease, head, headers, body).await {
                Ok(begun) => {
                    self.counts.first_byte(began.elapsed());
                    return Ok(begun.relay(self.options.stall_timeout, lease, turn));
                }
                Err(failure) => {
                    self.note(&lease, &failure);
                    last = Some(format!("{} at {}", failure, lease.instance.address));
                }
            }
        }
        Err(match last {
            Some(last) => Fault::NoAnswer(last),
            None if self.fleet.all().iter().any(|one| one.kind == Kind::Decode) => {
                Fault::NoDecode(": all of them have failed lately".into())
            }
            None => Fault::NoDecode(": none was added".into()),
        })
    }

    async fn decode_at(&self, lease: &Lease, head: &Parts, headers: &HeaderMap, body: Bytes) -> Result<Begun, Failure> {
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let patience = self.options.request_timeout;
        let answer = self.upstream.post(&lease.instance.address.authority(), path, headers, body, patience).await?;
        if is_of_the_instance(answer.status()) {
            return Err(Failure::Status(answer.status()));
        }
        // Servers send the head of a stream before they have begun: until a byte is there, another one can take over.
        let (head, mut from) = answer.into_parts();
        let mut first = Bytes::new();
        while first.is_empty() {
            match timeout(patience, from.frame()).await {
                Ok(Some(Ok(frame))) => first = frame.into_data().unwrap_or_default(),
                Ok(Some(Err(error))) => return Err(Failure::BrokeOff(error.to_string())),
                Ok(None) => break,
                Err(_) => return Err(Failure::TimedOut(patience)),
            }
        }
        Ok(Begun { status: head.status, headers: head.headers, first, from })
    }

    /// `/v1/models`, as a decode instance says it.
    pub async fn models(&self, headers: &HeaderMap) -> Result<Response, Fault> {
        let available = self.fleet.available(Kind::Decode, &[]);
        let instance = available.first().ok_or_else(|| Fault::NoDecode(String::new()))?;
        let id = HeaderValue::try_from(self.name_request()).expect("hexadecimal digits");
        let headers = for_instances(headers, self.authorization.as_ref(), id);
        let patience = self.options.connect_timeout;
        let asked = self.upstream.get_with(&instance.address.authority(), "/v1/models", &headers, patience).await;
        let (status, body) = asked.map_err(|failure| Fault::NoAnswer(failure.to_string()))?;
        Ok(with_type(status, "application/json", body.into()))
    }

    fn note(&self, lease: &Lease, failure: &Failure) {
        let instance = &lease.instance;
        tracing::debug!(instance = %instance.address, kind = instance.kind.name(), %failure, "a request failed there");
        self.counts.retried(instance.kind);
        match failure {
            // It has enough to do; that is no fault.
            Failure::Status(StatusCode::TOO_MANY_REQUESTS) => {}
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
    fn relay(self, stall: Duration, lease: Lease, turn: Turn) -> Response {
        let Begun { status, mut headers, first, from } = self;
        without_connection(&mut headers);
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_events = kind.starts_with("text/event-stream");
        if is_events {
            // An error may be added.
            headers.remove(header::CONTENT_LENGTH);
        }
        let mut response = Response::new(Body::new(Relay::new(from, first, is_events, stall, lease, turn)));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
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
