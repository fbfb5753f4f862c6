//! The way of a request: computed by a prefill instance, answered by a decode instance.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use mooncake_http::reply::with_type;

use crate::counts::{End, Rejection};
use crate::fault::Fault;
use crate::forward::account::Account;
use crate::forward::decode::Answer;
use crate::forward::prefill::PrefillOutcome;
use crate::instances::instance::{Kind, Lease};
use crate::instances::upstream::{Failure, for_instances, rest_of_body, without_connection};
use crate::proxy::Proxy;
use crate::request::Fields;
use crate::routing::prefix::Prompt;

/// Instances that are asked for one request, one after the other.
pub(crate) const ATTEMPTS: usize = 3;

/// `/v1/completions` and `/v1/chat/completions`.
pub(crate) async fn generate(State(proxy): State<Arc<Proxy>>, request: Request) -> Response {
    let mut account = Account::open(&proxy, &request);
    let response = match proxy.generate(request, &mut account).await {
        Ok(Answer::Begun(begun, lease, turn)) => {
            account.answered(begun.status);
            return begun.relay(proxy.options.stall_timeout, lease, turn, account);
        }
        Ok(Answer::Whole(response)) => response,
        Err(fault) => {
            tracing::debug!(%fault, "a request has no answer");
            match fault {
                Fault::Crowded { .. } => proxy.counts.rejected(Rejection::Queue),
                Fault::NoRoom { .. } => proxy.counts.rejected(Rejection::Bodies),
                _ => {}
            }
            fault.into_response()
        }
    };
    account.answered(response.status());
    account.ended(End::Whole);
    response
}

/// A request on its way.
pub(crate) struct Asked<'a> {
    pub path: &'a str,
    pub headers: HeaderMap,
    pub fields: Fields<'a>,
    pub is_one_sequence: bool,
    pub prompt: Prompt,
    pub name: String,
}

impl Proxy {
    async fn generate(&self, request: Request, account: &mut Account) -> Result<Answer, Fault> {
        if self.is_stopping.load(Ordering::Relaxed) {
            return Err(Fault::Stopping);
        }
        let (head, body) = request.into_parts();
        let name = self.name_request();
        let id = HeaderValue::try_from(&name).expect("hexadecimal digits");
        let headers = for_instances(&head.headers, self.authorization.as_ref(), id);
        account.named(headers["x-request-id"].as_bytes());
        let body = self.bodies.read(body).await?;
        let fields = Fields::of(&body.bytes)?;
        let turn = self.admission.enter().await?;
        account.admitted();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let (prompt, is_one_sequence) = (self.scheduler.prompt(&fields), fields.is_one_sequence());
        let asked = Asked { path, headers, fields, is_one_sequence, prompt, name };
        let (is_computed, transfer) = match self.prefill(&asked, account).await {
            PrefillOutcome::Refused(response) => return Ok(Answer::Whole(response)),
            PrefillOutcome::DecodeOnly => (false, None),
            PrefillOutcome::IntoPool => (true, None),
            PrefillOutcome::Transfer(transfer) => (true, Some(transfer)),
        };
        self.decode(&asked, &body.bytes, is_computed, transfer, turn, account).await
    }

    /// `/v1/models`, as a decode instance says it.
    pub async fn models(&self, headers: &HeaderMap) -> Result<Response, Fault> {
        let id = HeaderValue::try_from(self.name_request()).expect("hexadecimal digits");
        let headers = for_instances(headers, self.authorization.as_ref(), id);
        let timeout = self.options.connect_timeout;
        let mut fault = Fault::NoDecode(String::new());
        for instance in self.fleet.available(Kind::Decode, &[]).iter().take(ATTEMPTS) {
            let address = &instance.address;
            match self.upstream.get_with(&address.authority(), "/v1/models", &headers, timeout).await {
                Ok((status, body)) => return Ok(with_type(status, "application/json", body.into())),
                Err(failure) => fault = Fault::NoAnswer(format!("{failure} at {address}")),
            }
        }
        Err(fault)
    }

    /// An attempt came to nothing.
    pub fn note(&self, lease: &Lease, failure: &Failure, account: &mut Account) {
        let instance = &lease.instance;
        tracing::debug!(instance = %instance.address, kind = instance.kind.name(), %failure, "a request failed there");
        account.failed(instance.kind);
        if failure.counts_against_instance() {
            instance.failed(Instant::now(), &failure.to_string(), failure.is_gone());
        }
        if failure.is_gone() {
            // A server that comes back at that address has an empty cache.
            self.scheduler.forget(instance.number);
        }
    }
}

/// Whether an answer is about the instance, and another one may have a better. Instances of a fleet send no request
/// elsewhere.
pub(crate) fn another_may_answer(status: StatusCode) -> bool {
    status.is_informational()
        || status.is_redirection()
        || status.is_server_error()
        || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS)
}

/// A small answer, whole.
pub(crate) async fn passed_on(answer: axum::http::Response<Incoming>, timeout: Duration) -> Result<Response, Failure> {
    let (head, body) = answer.into_parts();
    let (status, mut headers) = (head.status, head.headers);
    without_connection(&mut headers);
    let mut response = Response::new(Body::from(rest_of_body(body, timeout).await?));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}
