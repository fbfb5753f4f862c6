//! A mock instance and a load for `bench/`: `proxy_load mock`, `proxy_load paced URL RATE SECONDS`,
//! `proxy_load closed URL CLIENTS SECONDS`, `proxy_load streams URL COUNT SECONDS`. Each load prints one line of JSON.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::BodyExt;
use hyper::body::Frame;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::{Instant as TokioInstant, Interval, MissedTickBehavior, interval, sleep_until, timeout};

/// Between two events of a stream of the mock instance.
const EVENT_INTERVAL: Duration = Duration::from_millis(200);

/// A request that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(30);

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match args[..] {
            ["mock"] => mock().await,
            ["paced", url, rate, seconds] => paced(url, rate.parse()?, seconds.parse()?).await,
            ["closed", url, clients, seconds] => closed(url, clients.parse()?, seconds.parse()?).await,
            ["streams", url, count, seconds] => streams(url, count.parse()?, seconds.parse()?).await,
            _ => Err("mock, paced URL RATE SECONDS, closed URL CLIENTS SECONDS, streams URL COUNT SECONDS".into()),
        }
    })
}

/// An instance that answers at once, or with `max_tokens` events.
async fn mock() -> Result<(), Failure> {
    let models = async || axum::Json(json!({"object": "list", "data": [{"id": "tiny", "object": "model"}]}));
    let router = Router::new()
        .route("/v1/models", get(models))
        .route("/health", get(async || "ok"))
        .route("/v1/completions", post(answer));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    Ok(axum::serve(listener, router).await?)
}

#[derive(Deserialize)]
struct Asked {
    #[serde(default)]
    stream: bool,
    max_tokens: u32,
}

async fn answer(axum::Json(asked): axum::Json<Asked>) -> Response {
    if !asked.stream {
        return axum::Json(json!({"object": "text_completion", "choices": [{"index": 0, "text": "a word"}]}))
            .into_response();
    }
    let mut every = interval(EVENT_INTERVAL);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let events = Body::new(Events { left: asked.max_tokens, every });
    (StatusCode::OK, [(header::CONTENT_TYPE, "text/event-stream")], events).into_response()
}

struct Events {
    left: u32,
    every: Interval,
}

impl HttpBody for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return std::task::Poll::Ready(None);
        }
        self.every.poll_tick(context).map(|_| {
            self.left -= 1;
            let event: &'static [u8] = match self.left {
                0 => b"data: [DONE]\n\n",
                _ => b"data: {\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\" word\"}]}\n\n",
            };
            Some(Ok(Frame::data(Bytes::from_static(event))))
        })
    }
}

/// Asks one server; clones share connections and what has been counted.
#[derive(Clone)]
struct Asker {
    client: Client<HttpConnector, Body>,
    url: Arc<str>,
    body: Bytes,
    took: Arc<Mutex<Vec<Duration>>>,
    failed: Arc<AtomicU64>,
}

impl Asker {
    fn new(url: &str, stream: bool, max_tokens: u32) -> Asker {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        // About what a chat of a page weighs.
        let prompt = "once upon a time ".repeat(120);
        let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "stream": stream}).to_string();
        Asker { client, url: url.into(), body: body.into(), took: Arc::default(), failed: Arc::default() }
    }

    async fn ask(&self, since: Instant) -> Option<usize> {
        let request = hyper::Request::post(&*self.url).header(header::CONTENT_TYPE, "application/json");
        let request = request.body(Body::from(self.body.clone())).expect("the parts are right");
        let whole = async {
            let answer = self.client.request(request).await.ok()?;
            let good = answer.status() == StatusCode::OK;
            let body = answer.into_body().collect().await.ok()?.to_bytes();
            good.then_some(body.len())
        };
        let bytes = timeout(TIMEOUT, whole).await.ok().flatten();
        match bytes {
            Some(_) => self.took.lock().push(since.elapsed()),
            None => drop(self.failed.fetch_add(1, Ordering::Relaxed)),
        }
        bytes
    }

    fn tell(&self, seconds: f64) {
        let mut took = std::mem::take(&mut *self.took.lock());
        took.sort_unstable();
        let at =
            |share: f64| took.get((took.len() as f64 * share) as usize).or(took.last()).map(|t| t.as_secs_f64() * 1e6);
        let failed = self.failed.load(Ordering::Relaxed);
        let rate = took.len() as f64 / seconds;
        println!(
            "{}",
            json!({"count": took.len(), "failed": failed, "rate": rate, "p50_us": at(0.5), "p99_us": at(0.99)})
        );
    }
}

/// So many requests a second, whether those before are answered or not; each is timed from when it was due.
async fn paced(url: &str, rate: f64, seconds: f64) -> Result<(), Failure> {
    let asker = Asker::new(url, false, 16);
    for _ in 0..50 {
        asker.ask(Instant::now()).await;
    }
    asker.took.lock().clear();
    let begun = TokioInstant::now();
    let mut tasks = Vec::new();
    for nth in 0..(rate * seconds) as u32 {
        let due = begun + Duration::from_secs_f64(f64::from(nth) / rate);
        sleep_until(due).await;
        // The timer's own granularity of a millisecond is nobody's latency.
        let (asker, since) = (asker.clone(), Instant::now());
        tasks.push(tokio::spawn(async move { asker.ask(since).await }));
    }
    for task in tasks {
        task.await?;
    }
    asker.tell(begun.elapsed().as_secs_f64());
    Ok(())
}

/// So many clients, each of which asks again when it has its answer.
async fn closed(url: &str, clients: u32, seconds: f64) -> Result<(), Failure> {
    let asker = Asker::new(url, false, 16);
    let begun = Instant::now();
    let end = begun + Duration::from_secs_f64(seconds);
    let one = |asker: Asker| async move {
        while Instant::now() < end {
            asker.ask(Instant::now()).await;
        }
    };
    let tasks: Vec<_> = (0..clients).map(|_| tokio::spawn(one(asker.clone()))).collect();
    for task in tasks {
        task.await?;
    }
    asker.tell(begun.elapsed().as_secs_f64());
    Ok(())
}

/// So many streams at a time; all of them are to be whole.
async fn streams(url: &str, count: u32, seconds: f64) -> Result<(), Failure> {
    let events = (seconds / EVENT_INTERVAL.as_secs_f64()) as u32;
    let asker = Asker::new(url, true, events);
    let begun = Instant::now();
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let asker = asker.clone();
            tokio::spawn(async move { asker.ask(Instant::now()).await })
        })
        .collect();
    let mut lengths = Vec::new();
    for task in tasks {
        lengths.extend(task.await?);
    }
    if lengths.iter().any(|length| *length != lengths[0]) {
        return Err("some streams are shorter than others".into());
    }
    asker.tell(begun.elapsed().as_secs_f64());
    Ok(())
}
