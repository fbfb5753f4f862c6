//! What an operator decides.

use std::net::SocketAddr;
use std::time::Duration;

use crate::routing::scheduling::Scheduling;

/// How a proxy behaves.
#[derive(Debug, Clone)]
pub struct ProxyOptions {
    /// Where it listens; port 0 is any free one.
    pub listen: SocketAddr,
    /// The model that all instances serve: only the last component of a path counts. None: whatever they serve.
    pub model: Option<String>,
    /// How instances are chosen.
    pub scheduling: Scheduling,
    /// Requests under way at a time.
    pub running_max: usize,
    /// Requests that wait for their turn beyond these.
    pub waiting_max: usize,
    /// Client connections at a time.
    pub connections_max: usize,
    /// Longest body of a request, bytes.
    pub body_max: usize,
    /// Bytes that the bodies of all requests under way may have.
    pub bodies_max: usize,
    /// For the whole of a request's header to come, and between two requests of a connection.
    pub header_timeout: Duration,
    /// For the whole of a request's body to come.
    pub body_timeout: Duration,
    /// To connect to an instance.
    pub connect_timeout: Duration,
    /// For a prompt to be computed.
    pub prefill_timeout: Duration,
    /// For the first byte of an answer.
    pub request_timeout: Duration,
    /// Between two pieces of an answer, and for a client to read one.
    pub stall_timeout: Duration,
    /// For the requests under way when the proxy is stopped.
    pub drain_timeout: Duration,
    /// Text whose KV cache an instance holds, bytes: what was sent to it before is taken for forgotten.
    pub instance_cache: usize,
    /// Between two checks of an instance.
    pub check_interval: Duration,
    /// Whether a line for each request is written to the log.
    pub access_log: bool,
    /// Key for `/instances/*`. None: they refuse.
    pub admin_key: Option<String>,
    /// Key that instances are told for callers that bring none.
    pub upstream_key: Option<String>,
}

impl Default for ProxyOptions {
    fn default() -> ProxyOptions {
        let s = Duration::from_secs;
        ProxyOptions {
            listen: ([127, 0, 0, 1], 8000).into(),
            model: None,
            scheduling: Scheduling::default(),
            running_max: 1024,
            waiting_max: 1024,
            connections_max: 4096,
            body_max: 64 << 20,
            bodies_max: 1 << 30,
            header_timeout: s(30),
            body_timeout: s(30),
            connect_timeout: s(3),
            prefill_timeout: s(600),
            request_timeout: s(3600),
            stall_timeout: s(300),
            drain_timeout: s(30),
            instance_cache: 16 << 20,
            check_interval: s(5),
            access_log: true,
            admin_key: None,
            upstream_key: None,
        }
    }
}
