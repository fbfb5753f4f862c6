//! Counts, and the lines of the log: each request once, with how it ended.

use std::sync::Arc;
use std::time::Duration;

use mooncake_proxy::ProxyOptions;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::mock_instances;
use crate::mock_instances::{Behaviour, Instance, KEY, Proxy, all_events, options, prompt};

fn metric(page: &str, name: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name}: {page}")).parse().unwrap()
}

#[tokio::test]
async fn an_answer_that_the_client_got_whole_is_not_counted_as_cancelled() {
    let (prefill, decode) = (Instance::start().await, Instance::start().await);
    let proxy = Proxy::start(options(), vec![prefill.named()], vec![decode.named()]).await;
    for stream in [true, false] {
        assert_eq!(proxy.ask(&prompt(stream)).await.0, 200);
    }
    decode.does(Behaviour::Status(204));
    assert_eq!(proxy.ask(&prompt(false)).await.0, 204);
    proxy.until(|status| status["running"] == json!(0)).await;
    let page = proxy.get("/metrics").await.1;
    assert_eq!(metric(&page, "mooncake_proxy_cancelled_total"), 0);
    assert_eq!(metric(&page, "mooncake_proxy_requests_total{code=\"2xx\"}"), 3);
    assert_eq!(metric(&page, "mooncake_proxy_request_seconds_count"), 3);
}

#[tokio::test]
async fn a_client_that_goes_while_it_waits_is_counted_as_cancelled() {
    let decode = Instance::start().await;
    let few = ProxyOptions { running_max: 1, ..options() };
    let proxy = Proxy::start(few, vec![], vec![decode.named()]).await;
    decode.does(Behaviour::Nothing);
    let body = prompt(true).to_string();
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut sockets = Vec::new();
    for _ in 0..2 {
        let mut socket = TcpStream::connect(proxy.address).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        sockets.push(socket);
    }
    proxy.until(|status| status["running"] == json!(1) && status["waiting"] == json!(1)).await;
    drop(sockets);
    proxy.until(|status| status["running"] == json!(0) && status["waiting"] == json!(0)).await;
    let page = proxy.get("/metrics").await.1;
    assert_eq!(metric(&page, "mooncake_proxy_cancelled_total"), 2);
    assert_eq!(metric(&page, "mooncake_proxy_request_seconds_count"), 2);
}

#[tokio::test]
async fn an_instance_that_leaves_and_is_here_again_is_one_in_the_metrics() {
    let decode = Instance::start().await;
    let proxy = Proxy::start(options(), vec![], vec![decode.named()]).await;
    let words = Arc::new(Semaphore::new(1));
    decode.does(Behaviour::Slowly(words.clone()));
    let begun = proxy.begin("/v1/completions", &[], prompt(true).to_string()).await;
    let named = decode.address.to_string();
    let change = async |what: &str| {
        let body = json!({"type": "decode", "instance": named}).to_string();
        assert_eq!(proxy.post(&format!("/instances/{what}"), &[("x-api-key", KEY)], body).await.0, 200);
        proxy.get("/metrics").await.1
    };
    let up = format!("mooncake_proxy_instance_up{{instance=\"decode/{named}\"}}");
    let in_flight = format!("mooncake_proxy_instance_in_flight{{instance=\"decode/{named}\"}}");
    let page = change("remove").await;
    assert_eq!((metric(&page, &up), metric(&page, &in_flight)), (0, 1));
    let page = change("add").await;
    assert_eq!(page.matches(&up).count(), 1, "Prometheus refuses a page with one series twice");
    assert_eq!((metric(&page, &up), metric(&page, &in_flight)), (1, 1));
    words.add_permits(100);
    assert_eq!(mock_instances::whole(begun).await, (200, all_events()));
}

#[tokio::test]
async fn a_stream_that_is_compressed_is_passed_on_as_it_comes_and_gets_nothing_added() {
    let decode = Instance::start().await;
    let short = ProxyOptions { stall_timeout: Duration::from_millis(300), ..options() };
    let proxy = Proxy::start(short, vec![], vec![decode.named()]).await;
    decode.does(Behaviour::Sends(&[("content-encoding", "gzip")], "no event"));
    let mut answer = proxy.begin("/v1/completions", &[], prompt(true).to_string()).await;
    let first = http_body_util::BodyExt::frame(answer.body_mut()).await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "no event", "whatever it is");
    assert_eq!(mock_instances::whole(answer).await.1, "broke off");
}

#[tokio::test]
async fn a_stream_that_has_said_that_it_is_done_has_not_broken_off() {
    let decode = Instance::start().await;
    let short = ProxyOptions { stall_timeout: Duration::from_millis(300), ..options() };
    let proxy = Proxy::start(short, vec![], vec![decode.named()]).await;
    decode.does(Behaviour::Sends(&[], "data: 1\n\ndata: [DONE]\n\n"));
    assert_eq!(proxy.ask(&prompt(true)).await, (200, "data: 1\n\ndata: [DONE]\n\n".to_owned()));
    assert_eq!(metric(&proxy.get("/metrics").await.1, "mooncake_proxy_broken_answers_total"), 0);
}

#[tokio::test]
async fn a_method_that_is_none_is_said_in_the_words_of_the_api() {
    let proxy = Proxy::start(options(), vec![], vec![]).await;
    let (status, said) = proxy.get("/v1/completions").await;
    assert!(status == 405 && said.contains("GET is no method of /v1/completions"), "{status} {said}");
}
