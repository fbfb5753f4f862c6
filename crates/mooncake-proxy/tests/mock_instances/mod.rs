//! Mock instances, a proxy before them, and a client.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod raw;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use mooncake_proxy::{InstanceAddress, ProxyOptions, ProxyServer};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

/// What an instance does with a request.
#[derive(Debug, Clone)]
pub enum Behaviour {
    /// Answers, in events if asked to.
    Answer,
    /// Answers so, with a text.
    Status(u16),
    /// Sends the head of an event stream and so many events, half of another one, and hangs up.
    BreakOff(usize),
    /// Sends the head of an event stream, and hangs up before the first byte of it.
    BreakOffAtOnce,
    /// Sends the head of an event stream, and an event for each word that comes.
    Slowly(Arc<tokio::sync::Semaphore>),
    /// Takes the request and says nothing.
    Nothing,
    /// Answers with this, as JSON.
    Says(&'static str),
    /// Sends an event stream that is this, to its end.
    Ends(&'static str),
    /// Answers what is not to be fetched; what is, with this status, or if there is none: never.
    CannotFetch(Option<u16>),
    /// Sends the head of an event stream, this, and nothing more for as long as the other side listens.
    Sends(&'static [(&'static str, &'static str)], &'static str),
}

/// One request that an instance had.
#[derive(Debug, Clone)]
pub struct Received {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Value,
    pub raw: Bytes,
}

struct Inside {
    model: String,
    does: Mutex<Behaviour>,
    had: Mutex<Vec<Received>>,
    /// Answers that were given up by the other side.
    abandoned: Mutex<usize>,
    engines: Mutex<Vec<String>>,
    unwell: Mutex<bool>,
    silent: Mutex<bool>,
    /// Checks that it has not answered.
    checked: Mutex<usize>,
}

/// A mock instance.
pub struct Instance {
    pub address: SocketAddr,
    inside: Arc<Inside>,
    task: JoinHandle<()>,
}

impl Instance {
    pub async fn start() -> Instance {
        Instance::of_model("models/tiny").await
    }

    pub async fn of_model(model: &str) -> Instance {
        let (does, had, abandoned) = (Mutex::new(Behaviour::Answer), Mutex::default(), Mutex::new(0));
        let engines = Mutex::new(vec!["engine-7".to_owned()]);
        let unwell = Mutex::new(false);
        let (silent, checked) = (Mutex::new(false), Mutex::new(0));
        let inside =
            Arc::new(Inside { model: model.to_owned(), does, had, abandoned, engines, unwell, silent, checked });
        let router = Router::new()
            .route("/v1/models", get(models))
            .route("/health", get(health))
            .route("/query", get(query))
            .route("/v1/completions", post(answer))
            .route("/v1/chat/completions", post(answer))
            .with_state(inside.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Instance { address, inside, task }
    }

    pub fn does(&self, does: Behaviour) {
        *self.inside.does.lock() = does;
    }

    /// One for each rank.
    pub fn has_engines(&self, engines: &[&str]) {
        *self.inside.engines.lock() = engines.iter().map(|engine| (*engine).to_owned()).collect();
    }

    /// It answers checks with an error from now on.
    pub fn is_unwell(&self) {
        *self.inside.unwell.lock() = true;
    }

    /// It answers neither checks nor questions for its models any more.
    pub fn is_silent(&self) {
        *self.inside.silent.lock() = true;
    }

    pub fn checked(&self) -> usize {
        *self.inside.checked.lock()
    }

    pub fn had(&self) -> Vec<Received> {
        self.inside.had.lock().clone()
    }

    pub fn abandoned(&self) -> usize {
        *self.inside.abandoned.lock()
    }

    /// Nobody listens there any more. Connections that exist go on.
    pub async fn stop(self) -> SocketAddr {
        self.task.abort();
        let _ = self.task.await;
        self.address
    }

    pub fn named(&self) -> InstanceAddress {
        self.address.to_string().parse().unwrap()
    }

    /// With its own port as that of the bootstrap service.
    pub fn with_bootstrap(&self) -> InstanceAddress {
        format!("{}:{}", self.address, self.address.port()).parse().unwrap()
    }
}

async fn models(State(inside): State<Arc<Inside>>) -> Response {
    let is_silent = *inside.silent.lock();
    if is_silent {
        std::future::pending::<()>().await;
    }
    axum::Json(json!({"object": "list", "data": [{"id": inside.model, "object": "model"}]})).into_response()
}

async fn health(State(inside): State<Arc<Inside>>) -> StatusCode {
    let is_silent = *inside.silent.lock();
    if is_silent {
        *inside.checked.lock() += 1;
        std::future::pending::<()>().await;
    }
    if *inside.unwell.lock() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
}

/// The bootstrap service of vLLM's connector.
async fn query(State(inside): State<Arc<Inside>>) -> Response {
    let engines = inside.engines.lock();
    let rank = |(rank, engine): (usize, &String)| (rank.to_string(), json!({"engine_id": engine, "worker_addr": {}}));
    axum::Json(engines.iter().enumerate().map(rank).collect::<serde_json::Map<_, _>>()).into_response()
}

async fn answer(State(inside): State<Arc<Inside>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let raw = to_bytes(body, usize::MAX).await.unwrap();
    let body: Value = serde_json::from_slice(&raw).unwrap();
    let streamed = body["stream"] == json!(true);
    inside.had.lock().push(Received { path: head.uri.to_string(), headers: head.headers, body, raw });
    let fetches = is_to_fetch(&inside);
    let does = match inside.does.lock().clone() {
        Behaviour::CannotFetch(None) if fetches => Behaviour::Nothing,
        Behaviour::CannotFetch(Some(status)) if fetches => Behaviour::Status(status),
        Behaviour::CannotFetch(_) => Behaviour::Answer,
        other => other,
    };
    match does {
        Behaviour::CannotFetch(_) => unreachable!("it has just been decided"),
        Behaviour::Says(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Behaviour::Ends(text) => ([(header::CONTENT_TYPE, "text/event-stream")], text).into_response(),
        Behaviour::Sends(headers, text) => {
            let (send, receive) = mpsc::channel::<Result<Bytes, std::io::Error>>(1);
            tokio::spawn(async move {
                send.send(Ok(text.into())).await.unwrap();
                send.closed().await;
            });
            let kind = [(header::CONTENT_TYPE, "text/event-stream")];
            let more: HeaderMap =
                headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            (kind, more, Body::new(Pieces(receive))).into_response()
        }
        Behaviour::Status(status) => {
            (StatusCode::from_u16(status).unwrap(), [("retry-after", "7")], "so it is").into_response()
        }
        Behaviour::Nothing => {
            let _left = Left(inside);
            std::future::pending().await
        }
        Behaviour::Answer if !streamed => {
            ([("x-instance", "mock")], axum::Json(json!({"choices": [{"text": "all of it"}]}))).into_response()
        }
        Behaviour::Answer => events(inside, usize::MAX, None),
        Behaviour::BreakOff(after) => events(inside, after, None),
        Behaviour::BreakOffAtOnce => {
            let (send, receive) = mpsc::channel::<Result<Bytes, std::io::Error>>(1);
            tokio::spawn(async move {
                // By then the head is on its way.
                tokio::time::sleep(Duration::from_millis(50)).await;
                let _ = send.send(Err(std::io::Error::other("it breaks off"))).await;
            });
            ([(header::CONTENT_TYPE, "text/event-stream")], Body::new(Pieces(receive))).into_response()
        }
        Behaviour::Slowly(words) => events(inside, usize::MAX, Some(words)),
    }
}

/// Whether the last request is for what another instance has computed.
fn is_to_fetch(inside: &Inside) -> bool {
    inside.had.lock().last().is_some_and(|had| had.body["kv_transfer_params"]["do_remote_prefill"] == json!(true))
}

/// Noticed when the other side has gone.
struct Left(Arc<Inside>);

impl Drop for Left {
    fn drop(&mut self) {
        *self.0.abandoned.lock() += 1;
    }
}

pub const EVENTS: usize = 5;

pub fn event(nth: usize) -> String {
    format!("data: {{\"choices\":[{{\"text\":\"{nth}\"}}]}}\n\n")
}

/// A request, for a stream or not.
pub fn prompt(stream: bool) -> Value {
    json!({"model": "tiny", "prompt": "once upon a time", "max_tokens": 64, "stream": stream})
}

/// What a stream that is whole says.
pub fn all_events() -> String {
    (0..EVENTS).map(event).collect::<String>() + "data: [DONE]\n\n"
}

fn events(inside: Arc<Inside>, until: usize, words: Option<Arc<tokio::sync::Semaphore>>) -> Response {
    let (send, receive) = mpsc::channel::<Result<Bytes, std::io::Error>>(1);
    tokio::spawn(async move {
        for nth in 0..EVENTS.min(until) {
            if let Some(words) = &words {
                tokio::select! {
                    word = words.acquire() => word.unwrap().forget(),
                    () = send.closed() => {}
                }
            }
            // In two pieces: what is passed on is whole all the same.
            let text = event(nth);
            let (one, two) = text.split_at(text.len() / 2);
            for piece in [one, two] {
                if send.send(Ok(piece.to_owned().into())).await.is_err() {
                    *inside.abandoned.lock() += 1;
                    return;
                }
            }
        }
        if until < EVENTS {
            let _ = send.send(Ok("data: {\"half\"".into())).await;
            let _ = send.send(Err(std::io::Error::other("it breaks off"))).await;
        } else {
            let _ = send.send(Ok("data: [DONE]\n\n".into())).await;
        }
    });
    let body = Body::new(Pieces(receive));
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], body).into_response()
}

struct Pieces(mpsc::Receiver<Result<Bytes, std::io::Error>>);

impl axum::body::HttpBody for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;
    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, std::io::Error>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(hyper::body::Frame::data)))
    }
}

/// A proxy that serves.
pub struct Proxy {
    pub address: SocketAddr,
    client: Client<HttpConnector, Body>,
    task: JoinHandle<()>,
}

pub const KEY: &str = "open sesame";

pub fn options() -> ProxyOptions {
    ProxyOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        model: Some("elsewhere/tiny".into()),
        check_interval: Duration::from_millis(50),
        admin_key: Some(KEY.into()),
        ..ProxyOptions::default()
    }
}

impl Proxy {
    pub async fn start(options: ProxyOptions, prefill: Vec<InstanceAddress>, decode: Vec<InstanceAddress>) -> Proxy {
        Proxy::start_until(options, prefill, decode, Arc::default()).await
    }

    /// One that is stopped when it is told to.
    pub async fn start_until(
        options: ProxyOptions,
        prefill: Vec<InstanceAddress>,
        decode: Vec<InstanceAddress>,
        stop: Arc<Notify>,
    ) -> Proxy {
        let server = ProxyServer::open(options, prefill, decode).await.unwrap();
        let address = server.address();
        let task = tokio::spawn(async move { server.serve(&stop).await });
        Proxy { address, client: Client::builder(TokioExecutor::new()).build_http(), task }
    }

    /// Waits until it has stopped.
    pub async fn ended(&mut self) {
        (&mut self.task).await.unwrap();
    }

    pub async fn begin(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> hyper::Response<Incoming> {
        let mut request = hyper::Request::post(format!("http://{}{path}", self.address));
        for (name, value) in headers.iter().chain(&[("content-type", "application/json")]) {
            request = request.header(*name, *value);
        }
        self.client.request(request.body(body.into()).unwrap()).await.unwrap()
    }

    pub async fn post(&self, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> (u16, String) {
        whole(self.begin(path, headers, body).await).await
    }

    pub async fn ask(&self, body: &Value) -> (u16, String) {
        self.post("/v1/completions", &[], body.to_string()).await
    }

    pub async fn get(&self, path: &str) -> (u16, String) {
        let uri = format!("http://{}{path}", self.address).parse().unwrap();
        whole(self.client.get(uri).await.unwrap()).await
    }

    pub async fn status(&self) -> Value {
        serde_json::from_str(&self.get("/status").await.1).unwrap()
    }

    /// Waits until the status page says so.
    pub async fn until(&self, good: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..400 {
            let status = self.status().await;
            if good(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("not within 10 s: {}", self.status().await);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The rest of an answer; "broke off" where it ends in the midst.
pub async fn whole(answer: hyper::Response<Incoming>) -> (u16, String) {
    let status = answer.status().as_u16();
    let body = to_bytes(Body::new(answer.into_body()), usize::MAX).await;
    (status, body.map_or("broke off".to_owned(), |body| String::from_utf8(body.to_vec()).unwrap()))
}
