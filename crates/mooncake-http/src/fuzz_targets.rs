//! Requests, as a function of bytes: for the fuzzers in `fuzz/` and for the test here. They are hyper's to read; what
//! is tried is how the servers have set it up. A connection keeps 64 KiB of what has come, and its pages say how much
//! of a body they take.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, RawQuery};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use mooncake_test_support::FuzzTarget;

use crate::connections::{Limits, speaking};

/// All of them.
pub const FUZZ_TARGETS: [FuzzTarget; 1] = [FuzzTarget { name: "http_request", read: request, seeds: request_seeds }];

const BODY_MAX: usize = 1 << 10;

/// All that comes over one connection.
fn request(bytes: &[u8]) {
    let pages = Router::new()
        .fallback(|RawQuery(query): RawQuery, body: Bytes| async move {
            assert!(body.len() <= BODY_MAX);
            format!("{query:?}")
        })
        .layer(DefaultBodyLimit::max(BODY_MAX));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let stream = TokioIo::new(tokio::io::join(bytes, tokio::io::sink()));
        // That it is none is an error, too.
        let _ =
            speaking(Limits::default().header, true).serve_connection(stream, TowerToHyperService::new(pages)).await;
    });
}

fn request_seeds() -> Vec<Vec<u8>> {
    [
        "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\nGET /health?x=%20 HTTP/1.0\r\n\r\n",
        "PUT /metadata?key=a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \
         chunked\r\n\r\n3\r\nabc\r\n18446744073709551615\r\n0\r\n\r\n",
        "PUT /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 99999999999999999999\r\n\r\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_others_send_is_read_or_refused_and_never_a_panic() {
        mooncake_test_support::run(&super::FUZZ_TARGETS);
    }
}
