//! The account of one request: it is counted, and logged in one line when it is over, however it ends.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::StatusCode;
use mooncake_http::Peer;

use crate::counts::End;
use crate::instances::instance::{Instance, Kind};
use crate::proxy::Proxy;
use crate::usage::Usage;

/// One request. It is over when this is dropped.
pub(crate) struct Account {
    proxy: Arc<Proxy>,
    pub began: Instant,
    peer: Option<SocketAddr>,
    path: String,
    id: String,
    status: Option<StatusCode>,
    end: End,
    queued: Option<Duration>,
    prefilled: Option<Duration>,
    first_byte: Option<Duration>,
    prefill: Option<Arc<Instance>>,
    decode: Option<Arc<Instance>>,
    failed: u32,
    bytes: u64,
    /// Looked for only if there is a line that says it.
    usage: Option<Usage>,
}

impl Account {
    pub fn open(proxy: &Arc<Proxy>, request: &Request) -> Account {
        let usage = proxy.log.is_some().then(Usage::default);
        Account {
            proxy: proxy.clone(),
            began: Instant::now(),
            peer: request.extensions().get::<Peer>().map(|peer| peer.0),
            path: request.uri().path().to_owned(),
            id: String::new(),
            status: None,
            end: End::ClientGone,
            queued: None,
            prefilled: None,
            first_byte: None,
            prefill: None,
            decode: None,
            failed: 0,
            bytes: 0,
            usage,
        }
    }

    /// What the instances call it.
    pub fn named(&mut self, id: &[u8]) {
        self.id = id.escape_ascii().to_string();
    }

    /// Its turn has come.
    pub fn admitted(&mut self) {
        let time = self.began.elapsed();
        self.queued = Some(time);
        self.proxy.counts.queued(time);
    }

    /// An instance has computed its prompt.
    pub fn prefilled(&mut self, by: &Arc<Instance>, time: Duration) {
        (self.prefill, self.prefilled) = (Some(by.clone()), Some(time));
        self.proxy.counts.prefilled(time);
    }

    /// An instance has begun to answer.
    pub fn first_byte(&mut self, by: &Arc<Instance>) {
        let time = self.began.elapsed();
        (self.decode, self.first_byte) = (Some(by.clone()), Some(time));
        self.proxy.counts.first_byte(time);
    }

    /// An attempt came to nothing.
    pub fn failed(&mut self, kind: Kind) {
        self.failed += 1;
        self.proxy.counts.failed(kind);
    }

    /// The head of the answer is there.
    pub fn answered(&mut self, status: StatusCode) {
        self.status = Some(status);
        self.proxy.counts.answered(status, self.began.elapsed());
    }

    /// Bytes of the answer go to the client.
    pub fn passed(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if let Some(usage) = &mut self.usage {
            usage.passed(bytes);
        }
    }

    pub fn ended(&mut self, end: End) {
        self.end = end;
    }

    fn line(&self) -> String {
        let mut line = String::with_capacity(256);
        let mut say = |name: &str, value: &dyn std::fmt::Display| {
            let _ = write!(line, "{}{name}={value}", if name == "client" { "" } else { " " });
        };
        let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
        say("client", &self.peer.map_or("-".to_owned(), |peer| peer.to_string()));
        say("method", &"POST");
        say("path", &self.path);
        say("status", &self.status.map_or(499, |status| status.as_u16()));
        say("end", &self.end.name());
        say("total_ms", &ms(self.began.elapsed()));
        for (name, time) in
            [("queue_ms", self.queued), ("prefill_ms", self.prefilled), ("first_byte_ms", self.first_byte)]
        {
            time.inspect(|time| say(name, &ms(*time)));
        }
        for (name, instance) in [("prefill", &self.prefill), ("decode", &self.decode)] {
            instance.iter().for_each(|instance| say(name, &instance.address));
        }
        say("bytes", &self.bytes);
        if let Some(tokens) = self.usage.as_ref().and_then(Usage::tokens) {
            say("prompt_tokens", &tokens.prompt_tokens);
            say("completion_tokens", &tokens.completion_tokens);
        }
        if self.failed > 0 {
            say("failed_attempts", &self.failed);
        }
        if !self.id.is_empty() {
            say("id", &self.id);
        }
        line
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.proxy.counts.ended(self.end, self.began.elapsed());
        if let Some(log) = &self.proxy.log {
            log.say(self.line());
        }
    }
}
