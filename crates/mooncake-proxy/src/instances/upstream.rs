//! Requests to instances.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time;

/// Connections are kept for less than servers of Python keep them.
const KEPT: Duration = Duration::from_secs(4);

/// A host that has gone without a word is noticed after three of these.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Most bytes of an answer that is read and not passed on.
const ANSWER_MAX: usize = 16 << 20;

/// Headers that are of one connection only.
const OF_A_CONNECTION: &[HeaderName] = &[
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Why an instance gave no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("its answer broke off: {0}")]
    BrokeOff(String),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("it has answered no checks for a while")]
    Hangs,
    #[error("the prefill instance went before its blocks were fetched")]
    NothingToFetch,
    #[error("the proxy has no connection left: {0}")]
    NoConnection(String),
}

impl Failure {
    /// Whether no server is there.
    pub fn is_gone(&self) -> bool {
        matches!(self, Failure::Unreachable(_))
    }

    /// Whether it speaks against the instance.
    pub fn counts_against_instance(&self) -> bool {
        match self {
            // It has enough to do.
            Failure::Status(StatusCode::TOO_MANY_REQUESTS) => false,
            // That is known.
            Failure::Hangs => false,
            Failure::NothingToFetch | Failure::NoConnection(_) => false,
            Failure::Unreachable(_) | Failure::TimedOut(_) | Failure::BrokeOff(_) | Failure::Status(_) => true,
        }
    }
}

/// Keeps connections to instances.
#[derive(Debug, Clone)]
pub(crate) struct Upstream {
    client: Client<HttpConnector, Body>,
}

impl Upstream {
    pub fn new(connect_timeout: Duration) -> Upstream {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(connect_timeout));
        connector.set_nodelay(true);
        connector.set_keepalive(Some(KEEPALIVE));
        connector.set_keepalive_interval(Some(KEEPALIVE));
        connector.set_keepalive_retries(Some(3));
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_idle_timeout(KEPT).http1_max_buf_size(256 << 10);
        Upstream { client: builder.build(connector) }
    }

    /// Sends a JSON body and waits for the head of the answer.
    pub async fn post(
        &self,
        authority: &str,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Response<Incoming>, Failure> {
        let mut request = request(Method::POST, authority, path, body.into())?;
        *request.headers_mut() = headers;
        self.send(request, timeout).await
    }

    /// The whole of a small answer.
    pub async fn get(&self, authority: &str, path: &str, timeout: Duration) -> Result<(StatusCode, Bytes), Failure> {
        self.get_with(authority, path, &HeaderMap::new(), timeout).await
    }

    /// The same with headers.
    pub async fn get_with(
        &self,
        authority: &str,
        path: &str,
        headers: &HeaderMap,
        timeout: Duration,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let mut request = request(Method::GET, authority, path, Body::empty())?;
        request.headers_mut().extend(headers.clone());
        let answer = self.send(request, timeout).await?;
        let status = answer.status();
        Ok((status, whole(answer, timeout).await?))
    }

    async fn send(&self, request: Request<Body>, timeout: Duration) -> Result<Response<Incoming>, Failure> {
        match time::timeout(timeout, self.client.request(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if error.is_connect() && is_our_own(&error) => Err(Failure::NoConnection(told(&error))),
            Ok(Err(error)) if error.is_connect() => Err(Failure::Unreachable(root(&error))),
            Ok(Err(error)) => Err(Failure::BrokeOff(told(&error))),
            Err(_) => Err(Failure::TimedOut(timeout)),
        }
    }
}

/// The rest of an answer.
pub(crate) async fn whole(answer: Response<Incoming>, timeout: Duration) -> Result<Bytes, Failure> {
    rest_of_body(answer.into_body(), timeout).await
}

/// The rest of its body.
pub(crate) async fn rest_of_body(body: Incoming, timeout: Duration) -> Result<Bytes, Failure> {
    match time::timeout(timeout, to_bytes(Body::new(body), ANSWER_MAX)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err(Failure::BrokeOff(told(&error))),
        Err(_) => Err(Failure::TimedOut(timeout)),
    }
}

/// What of a client's headers goes to an instance.
pub(crate) fn for_instances(client: &HeaderMap, key: Option<&HeaderValue>, request_id: HeaderValue) -> HeaderMap {
    let mut headers = client.clone();
    without_connection(&mut headers);
    for name in [header::HOST, header::CONTENT_LENGTH, header::EXPECT] {
        headers.remove(name);
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.entry("x-request-id").or_insert(request_id);
    if let Some(key) = key {
        headers.entry(header::AUTHORIZATION).or_insert_with(|| key.clone());
    }
    headers
}

/// Takes away the headers of one connection: the known names, and the names that the message itself lists.
pub(crate) fn without_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(OF_A_CONNECTION) {
        headers.remove(name);
    }
    headers.remove("keep-alive");
}

fn request(method: Method, authority: &str, path: &str, body: Body) -> Result<Request<Body>, Failure> {
    let request = Request::builder().method(method).uri(format!("http://{authority}{path}")).body(body);
    request.map_err(|error| Failure::Unreachable(error.to_string()))
}

/// Whether a connection could not even be begun: no descriptors, ports or memory are left here.
fn is_our_own(error: &dyn std::error::Error) -> bool {
    // ENOMEM, ENFILE, EMFILE, EADDRNOTAVAIL, ENOBUFS, which have one number on all Linux architectures that we build
    // for.
    const NOTHING_LEFT: [i32; 5] = [12, 23, 24, 99, 105];
    let causes = std::iter::successors(error.source(), |error| error.source());
    let mut systems = causes.filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    systems.any(|error| error.raw_os_error().is_some_and(|code| NOTHING_LEFT.contains(&code)))
}

/// The innermost cause alone: what is around it says that a connection was to be made, which the caller says.
fn root(error: &dyn std::error::Error) -> String {
    let innermost = std::iter::successors(Some(error), |error| error.source()).last();
    innermost.map_or_else(String::new, ToString::to_string)
}

/// An error with its causes: the outermost says little.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_connection_stay_with_it_and_a_caller_s_key_counts() {
        let mut client = HeaderMap::new();
        for (name, value) in [
            ("host", "proxy"),
            ("connection", "keep-alive, X-Hop"),
            ("keep-alive", "5"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("content-type", "application/json; charset=utf-8"),
            ("traceparent", "00-1"),
        ] {
            client.insert(name, HeaderValue::from_static(value));
        }
        let key = HeaderValue::from_static("Bearer of-the-proxy");
        let headers = for_instances(&client, Some(&key), HeaderValue::from_static("id"));
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "content-type", "traceparent", "x-request-id"]);
        assert_eq!(headers["authorization"], "Bearer of-the-proxy");
        client.insert("authorization", HeaderValue::from_static("Bearer of-the-caller"));
        let headers = for_instances(&client, Some(&key), HeaderValue::from_static("id"));
        assert_eq!(headers["authorization"], "Bearer of-the-caller");
    }
}
