//! Requests through a proxy: what the instances are asked, and what the client gets.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper::body::Body as _;
use mooncake_proxy::{ProxyOptions, ProxyServer, Scheduling, StartError};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::mock_instances;
use crate::mock_instances::{Behaviour, Instance, KEY, Proxy, all_events, event, options, prompt};

#[tokio::test]
async fn a_prompt_is_computed_for_one_token_and_the_decode_instance_answers_untouched() {
    let (prefill, decode) = (Instance::start().await, Instance::start().await);
    let proxy = Proxy::start(options(), vec![prefill.named()], vec![decode.named()]).await;
    let raw = r#"{ "model":"tiny",  "messages":[{"role":"user","content":"\u00e9"}], "stream":true, "n":2 }"#;
    let headers = [("authorization", "Bearer mine"), ("traceparent", "00-1-2-01")];
    let (status, body) = proxy.post("/v1/chat/completions?x=1", &headers, raw).await;
    assert_eq!((status, body), (200, all_events()));

    let (asked, answered) = (prefill.had(), decode.had());
    assert_eq!((asked.len(), answered.len()), (1, 1));
    let body = &asked[0].body;
    assert_eq!((&body["max_tokens"], &body["stream"], body.get("n")), (&json!(1), &json!(false), None));
    assert_eq!(body["messages"], json!([{"role": "user", "content": "é"}]));
    assert_eq!((&*answered[0].raw, &*answered[0].path), (raw.as_bytes(), "/v1/chat/completions?x=1"));
    for had in [&asked[0], &answered[0]] {
        assert_eq!(had.headers["authorization"], headers[0].1);
        assert_eq!(had.headers["traceparent"], headers[1].1);
    }
    assert_eq!(asked[0].headers["x-request-id"], answered[0].headers["x-request-id"], "one request, one name");

    let whole = proxy.begin("/v1/completions", &[], prompt(false).to_string()).await;
    assert_eq!(whole.headers()["x-instance"], "mock");
    assert_eq!(whole.headers()["content-type"], "application/json");
    assert_eq!(mock_instances::whole(whole).await, (200, r#"{"choices":[{"text":"all of it"}]}"#.to_owned()));
}

#[tokio::test]
async fn a_prefill_that_fails_is_followed_by_another_and_then_by_none() {
    let (first, second, decode) = (Instance::start().await, Instance::start().await, Instance::start().await);
    let proxy = Proxy::start(options(), vec![first.named(), second.named()], vec![decode.named()]).await;
    first.does(Behaviour::Status(500));
    for _ in 0..2 {
        assert_eq!(proxy.ask(&prompt(true)).await, (200, all_events()));
    }
    assert_eq!(second.had().len(), 2);
    second.does(Behaviour::Status(503));
    assert_eq!(proxy.ask(&prompt(true)).await, (200, all_events()), "the decode instance computes it");
    let gone = second.stop().await;
    assert_eq!(proxy.ask(&prompt(true)).await, (200, all_events()));
    let out = |status: &Value, address: &str| {
        let all = status["instances"].as_array().unwrap();
        all.iter().any(|one| one["instance"] == json!(address) && one["health"] == json!("out of service"))
    };
    proxy.until(|status| out(status, &gone.to_string())).await;
    assert!(proxy.get("/metrics").await.1.contains("mooncake_proxy_decode_only_total"));
}

#[tokio::test]
async fn what_is_wrong_with_the_request_is_said_and_not_tried_elsewhere() {
    let (first, second, decode) = (Instance::start().await, Instance::start().await, Instance::start().await);
    let proxy = Proxy::start(options(), vec![first.named(), second.named()], vec![decode.named()]).await;
    first.does(Behaviour::Status(404));
    second.does(Behaviour::Status(404));
    assert_eq!(proxy.ask(&prompt(true)).await, (404, "so it is".into()));
    assert_eq!((first.had().len() + second.had().len(), decode.had().len()), (1, 0));
    for body in ["", "null", "[]", "{", "{\"a\":}"] {
        let (status, said) = proxy.post("/v1/completions", &[], body).await;
        assert_eq!(status, 400, "{body:?}");
        assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["error"]["type"], json!("invalid_request_error"));
    }
    assert_eq!(proxy.get("/v1/engines").await.0, 404);
    assert_eq!(proxy.get("/v1/completions").await.0, 405);
}

#[tokio::test]
async fn a_decode_that_fails_before_its_first_byte_is_replaced_and_one_that_breaks_off_says_so() {
    let (prefill, one, two) = (Instance::start().await, Instance::start().await, Instance::start().await);
    let proxy = Proxy::start(options(), vec![prefill.with_bootstrap()], vec![one.named(), two.named()]).await;
    // Its head comes, and no event.
    one.does(Behaviour::BreakOff(0));
    two.does(Behaviour::BreakOff(0));
    let (status, said) = proxy.ask(&prompt(true)).await;
    assert!(status == 502 || status == 200 && said.contains("upstream_error"), "{status} {said}");
    two.does(Behaviour::Answer);
    one.does(Behaviour::Status(500));
    for _ in 0..4 {
        assert_eq!(proxy.ask(&prompt(true)).await, (200, all_events()));
    }
    // Who takes over computes the prompt itself: what was to be fetched may be gone.
    let of_two = two.had();
    assert!(of_two.iter().any(|had| had.body.get("kv_transfer_params").is_none()));

    two.does(Behaviour::BreakOff(2));
    let (status, said) = proxy.ask(&prompt(true)).await;
    let rest = said.strip_prefix(&(event(0) + &event(1))).unwrap_or_else(|| panic!("{said}"));
    assert_eq!(status, 200);
    let error = rest.strip_prefix("data: ").and_then(|rest| rest.strip_suffix("\n\ndata: [DONE]\n\n")).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(error).unwrap()["error"]["code"],
        json!(502),
        "whole events, then this one"
    );
}

#[tokio::test]
async fn an_answer_that_breaks_off_between_its_head_and_its_first_byte_is_begun_elsewhere() {
    let (breaks, good) = (Instance::start().await, Instance::start().await);
    let proxy = Proxy::start(options(), vec![], vec![breaks.named(), good.named()]).await;
    breaks.does(Behaviour::BreakOffAtOnce);
    while breaks.had().is_empty() {
        assert_eq!(proxy.ask(&prompt(true)).await, (200, all_events()));
    }
}

#[tokio::test]
async fn an_instance_whose_answers_break_off_is_left_alone() {
    let decode = Instance::start().await;
    // One check at the beginning, which may fall between two answers, finds it well.
    let seldom = ProxyOptions { check_interval: Duration::from_secs(3600), ..options() };
    let proxy = Proxy::start(seldom, vec![], vec![decode.named()]).await;
    decode.does(Behaviour::BreakOff(2));
    for _ in 0..2 * 3 {
        let (status, said) = proxy.ask(&prompt(true)).await;
        assert!(status == 200 && said.contains("broke off"), "{status} {said}");
    }
    assert_eq!(proxy.status().await["instances"][0]["health"], json!("out of service"));
}

#[tokio::test]
async fn the_only_instance_is_asked_again_where_its_connection_closed_and_not_where_it_said_no() {
    for (does, times) in [(Behaviour::BreakOffAtOnce, 3), (Behaviour::Status(500), 1), (Behaviour::Status(307), 1)] {
        let decode = Instance::start().await;
        let proxy = Proxy::start(options(), vec![], vec![decode.named()]).await;
        decode.does(does);
        assert_ne!(proxy.ask(&prompt(true)).await.0, 200);
        assert_eq!(decode.had().len(), times);
    }
}

#[tokio::test]
async fn a_client_that_goes_takes_its_request_along() {
    let (prefill, decode) = (Instance::start().await, Instance::start().await);
    let proxy = Proxy::start(options(), vec![prefill.named()], vec![decode.named()]).await;
    let words = Arc::new(Semaphore::new(2));
    decode.does(Behaviour::Slowly(words));
    let answer = proxy.begin("/v1/completions", &[], prompt(true).to_string()).await;
    assert!(!answer.body().is_end_stream());
    drop(answer);
    prefill.does(Behaviour::Nothing);
    let waits = tokio::spawn({
        let address = proxy.address;
        async move {
            use tokio::io::AsyncWriteExt;
            let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
            let body = prompt(true).to_string();
            let head =
                format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            socket.write_all(head.as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    waits.await.unwrap();
    for _ in 0..400 {
        if decode.abandoned() == 1 && prefill.abandoned() == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert_eq!((decode.abandoned(), prefill.abandoned()), (1, 1));
    proxy.until(|status| status["instances"].as_array().unwrap().iter().all(|one| one["in_flight"] == json!(0))).await;
}

#[tokio::test]
async fn instances_come_and_go_while_requests_go_on() {
    let (prefill, decode) = (Instance::start().await, Instance::start().await);
    let proxy = Proxy::start(options(), vec![prefill.named()], vec![decode.named()]).await;
    let (new, other) = (Instance::start().await, Instance::of_model("models/large").await);
    let change = async |what: &str, key: Option<&str>, body: Value| {
        let headers: Vec<(&str, &str)> = key.iter().map(|key| ("x-api-key", *key)).collect();
        proxy.post(&format!("/instances/{what}"), &headers, body.to_string()).await
    };
    let body = |kind: &str, instance: &str| json!({"type": kind, "instance": instance});
    let named = new.address.to_string();
    assert_eq!(change("add", None, body("decode", &named)).await.0, 422);
    assert_eq!(change("add", Some("close sesame"), body("decode", &named)).await.0, 403);
    for wrong in
        [body("both", &named), body("decode", "nowhere"), body("decode", &other.address.to_string()), json!({})]
    {
        let (status, said) = change("add", Some(KEY), wrong).await;
        assert_eq!(status, 400, "{said}");
        assert!(serde_json::from_str::<Value>(&said).unwrap()["detail"].is_string());
    }
    let (status, said) = change("add", Some(KEY), body("decode", &named)).await;
    assert_eq!((status, &*said), (200, &*format!(r#"{{"message":"Added {named} to decode_instances."}}"#)));
    assert_eq!(change("add", Some(KEY), body("decode", &named)).await.0, 400, "twice");
    assert_eq!(proxy.status().await["decode_node_count"], json!(2));

    // What the removed one has begun it ends.
    let words = Arc::new(Semaphore::new(1));
    decode.does(Behaviour::Slowly(words.clone()));
    new.does(Behaviour::Slowly(words.clone()));
    let begun = proxy.begin("/v1/completions", &[], prompt(true).to_string()).await;
    let at = if decode.had().is_empty() { &new } else { &decode };
    let leaver = at.address.to_string();
    assert_eq!(change("remove", Some(KEY), body("decode", &leaver)).await.0, 200);
    assert_eq!(change("remove", Some(KEY), body("decode", &leaver)).await.0, 404);
    proxy.until(|status| status.to_string().contains("leaving")).await;
    words.add_permits(100);
    assert_eq!(mock_instances::whole(begun).await, (200, all_events()));
    proxy.until(|status| !status.to_string().contains("leaving")).await;
    for _ in 0..4 {
        assert_eq!(proxy.ask(&prompt(true)).await, (200, all_events()));
    }
    assert_eq!(at.had().len(), 1, "none came after it was removed");
}

#[tokio::test]
async fn without_a_key_instances_cannot_be_changed_and_a_wrong_model_is_no_instance() {
    let other = Instance::of_model("models/large").await;
    let proxy = Proxy::start(ProxyOptions { admin_key: None, ..options() }, vec![], vec![]).await;
    let (status, said) = proxy.post("/instances/add", &[("x-api-key", "")], "{}").await;
    assert_eq!(status, 500);
    assert!(said.contains("ADMIN_API_KEY"), "{said}");
    assert_eq!(proxy.get("/health").await.0, 503);
    assert_eq!(proxy.ask(&prompt(false)).await.0, 503);
    let opened = ProxyServer::open(options(), vec![], vec![other.named()]).await;
    assert!(matches!(opened, Err(StartError::Unfit(why)) if why.contains("models/large")));
}

#[tokio::test]
async fn an_instance_that_comes_later_is_taken_into_service_and_one_that_comes_back_too() {
    let prefill = Instance::start().await;
    let late = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let named = late.local_addr().unwrap().to_string().parse().unwrap();
    drop(late);
    let proxy = Proxy::start(options(), vec![prefill.named()], vec![named]).await;
    assert_eq!(proxy.ask(&prompt(true)).await.0, 503);
    let decode = Instance::start().await;
    let add = json!({"type": "decode", "instance": decode.address.to_string()});
    assert_eq!(proxy.post("/instances/add", &[("x-api-key", KEY)], add.to_string()).await.0, 200);
    assert_eq!(proxy.ask(&prompt(true)).await, (200, all_events()));
    assert_eq!(proxy.get("/health").await.0, 200);
    assert!(proxy.get("/v1/models").await.1.contains("models/tiny"));
}

#[tokio::test]
async fn too_much_is_refused_with_a_word_and_a_hint() {
    let (prefill, decode) = (Instance::start().await, Instance::start().await);
    let few = ProxyOptions { running_max: 1, waiting_max: 1, body_max: 10_000, ..options() };
    let proxy = Arc::new(Proxy::start(few, vec![prefill.named()], vec![decode.named()]).await);
    let (status, _) = proxy.post("/v1/completions", &[], Body::from(vec![b' '; 10_001])).await;
    assert_eq!(status, 413);
    let words = Arc::new(Semaphore::new(1));
    decode.does(Behaviour::Slowly(words.clone()));
    let begun = proxy.begin("/v1/completions", &[], prompt(true).to_string()).await;
    let waiting = tokio::spawn({
        let proxy = proxy.clone();
        async move { proxy.ask(&prompt(true)).await }
    });
    proxy.until(|status| status["waiting"] == json!(1)).await;
    let refused = proxy.begin("/v1/completions", &[], prompt(true).to_string()).await;
    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].to_str().unwrap()), (429, "1"));
    words.add_permits(100);
    assert_eq!(mock_instances::whole(begun).await, (200, all_events()));
    assert_eq!(waiting.await.unwrap(), (200, all_events()));
}

#[tokio::test]
async fn an_instance_that_says_nothing_is_left_after_its_time() {
    let (prefill, one, two) = (Instance::start().await, Instance::start().await, Instance::start().await);
    let short = Duration::from_millis(200);
    let impatient = ProxyOptions { prefill_timeout: short, request_timeout: short, ..options() };
    let proxy = Proxy::start(impatient, vec![prefill.named()], vec![one.named(), two.named()]).await;
    prefill.does(Behaviour::Nothing);
    one.does(Behaviour::Nothing);
    for _ in 0..2 {
        assert_eq!(proxy.ask(&prompt(true)).await, (200, all_events()));
    }
    two.does(Behaviour::Nothing);
    let (status, said) = proxy.ask(&prompt(true)).await;
    assert_eq!(status, 502);
    assert!(said.contains("200ms"), "{said}");
}

#[tokio::test]
async fn the_last_instance_s_own_error_is_passed_on() {
    let decode = Instance::start().await;
    let proxy = Proxy::start(options(), vec![], vec![decode.named()]).await;
    decode.does(Behaviour::Status(429));
    let answer = proxy.begin("/v1/completions", &[], prompt(true).to_string()).await;
    assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].to_str().unwrap()), (429, "7"));
    assert_eq!(mock_instances::whole(answer).await.1, "so it is");
    decode.does(Behaviour::Answer);
    assert_eq!(proxy.ask(&prompt(true)).await, (200, all_events()), "having enough to do is no fault");
}

#[tokio::test]
async fn requests_that_no_instance_can_answer_do_not_end_the_service_for_others() {
    let (prefill, one, two) = (Instance::start().await, Instance::start().await, Instance::start().await);
    // No check in between helps.
    let seldom = ProxyOptions { check_interval: Duration::from_secs(3600), ..options() };
    let proxy = Proxy::start(seldom, vec![prefill.named()], vec![one.named(), two.named()]).await;
    for instance in [&prefill, &one, &two] {
        instance.does(Behaviour::Status(500));
    }
    for _ in 0..5 {
        assert_eq!(proxy.ask(&prompt(true)).await, (500, "so it is".into()));
    }
    for instance in [&prefill, &one, &two] {
        instance.does(Behaviour::Answer);
    }
    for _ in 0..3 {
        assert_eq!(proxy.ask(&prompt(true)).await, (200, all_events()));
    }
}

#[tokio::test]
async fn the_models_are_those_of_any_decode_instance_that_answers() {
    let (gone, there) = (Instance::start().await, Instance::start().await);
    let second = Duration::from_secs(1);
    let seldom = ProxyOptions { check_interval: 3600 * second, connect_timeout: second / 5, ..options() };
    let proxy = Proxy::start(seldom, vec![], vec![gone.named(), there.named()]).await;
    gone.is_silent();
    let (status, said) = proxy.get("/v1/models").await;
    assert!(status == 200 && said.contains("models/tiny"), "{status} {said}");
}

#[tokio::test]
async fn what_waits_at_an_instance_that_hangs_goes_elsewhere() {
    let (one, two) = (Instance::start().await, Instance::start().await);
    let proxy = Arc::new(Proxy::start(options(), vec![], vec![one.named(), two.named()]).await);
    one.does(Behaviour::Nothing);
    two.does(Behaviour::Nothing);
    let waits = tokio::spawn({
        let proxy = proxy.clone();
        async move { proxy.ask(&prompt(true)).await }
    });
    while one.had().is_empty() && two.had().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (hangs, other) = if one.had().is_empty() { (&two, &one) } else { (&one, &two) };
    other.does(Behaviour::Answer);
    hangs.is_unwell();
    assert_eq!(waits.await.unwrap(), (200, all_events()));
    assert_eq!(hangs.abandoned(), 1);
}

#[tokio::test]
async fn a_proxy_that_is_stopped_ends_what_it_has_begun_and_takes_no_more() {
    let decode = Instance::start().await;
    let stop = Arc::new(tokio::sync::Notify::new());
    let mut proxy = Proxy::start_until(options(), vec![], vec![decode.named()], stop.clone()).await;
    let words = Arc::new(Semaphore::new(1));
    decode.does(Behaviour::Slowly(words.clone()));
    let begun = proxy.begin("/v1/completions", &[], prompt(true).to_string()).await;
    // A connection that was there before may go on until it asks.
    let mut other = tokio::net::TcpStream::connect(proxy.address).await.unwrap();
    assert_eq!(proxy.get("/health").await.0, 200);
    stop.notify_one();
    let mut refused = String::new();
    while refused.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if tokio::net::TcpStream::connect(proxy.address).await.is_err() {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            other.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
            other.read_to_string(&mut refused).await.unwrap();
        }
    }
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    words.add_permits(100);
    assert_eq!(mock_instances::whole(begun).await, (200, all_events()));
    tokio::time::timeout(Duration::from_secs(20), proxy.ended()).await.expect("then it is over");
}

#[tokio::test]
async fn a_cache_aware_proxy_sends_a_conversation_where_its_beginning_was() {
    let (one, two, decode) = (Instance::start().await, Instance::start().await, Instance::start().await);
    let aware = ProxyOptions { scheduling: Scheduling::CacheAware, ..options() };
    let proxy = Proxy::start(aware, vec![one.named(), two.named()], vec![decode.named()]).await;
    let ask = async |body: Value| assert_eq!(proxy.ask(&body).await, (200, all_events()));
    let turn = |text: String| json!({"model": "tiny", "prompt": text, "stream": true});
    let text: String = (0..4_000).map(|number| format!("{number} bottles of beer. ")).collect();
    let half = |share: usize| turn(text[..text.len() * share / 4].to_owned());
    for share in 1..=4 {
        ask(half(share)).await;
    }
    let had = (one.had().len(), two.had().len());
    assert!(had == (4, 0) || had == (0, 4), "each of them goes on from the one before: {had:?}");
    ask(half(4)).await;
    assert_eq!(one.had().len() + two.had().len(), 4, "the decode instance has all of it");
    assert_eq!(decode.had().len(), 5);
    assert!(proxy.get("/metrics").await.1.contains("mooncake_proxy_decode_only_total{reason=\"chosen\"} 1"));
}

#[tokio::test]
async fn what_waits_at_an_instance_that_hangs_and_is_removed_goes_elsewhere() {
    let (hangs, other) = (Instance::start().await, Instance::start().await);
    let proxy = Arc::new(Proxy::start(options(), vec![], vec![hangs.named()]).await);
    hangs.does(Behaviour::Nothing);
    let waits = tokio::spawn({
        let proxy = proxy.clone();
        async move { proxy.ask(&prompt(true)).await }
    });
    while hangs.had().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for (what, instance) in [("add", &other), ("remove", &hangs)] {
        let body = json!({"type": "decode", "instance": instance.address.to_string()}).to_string();
        assert_eq!(proxy.post(&format!("/instances/{what}"), &[("x-api-key", KEY)], body).await.0, 200);
    }
    hangs.is_unwell();
    assert_eq!(waits.await.unwrap(), (200, all_events()));
}

#[tokio::test]
async fn a_redirection_is_no_answer_and_no_computation() {
    let (sends, prefill) = (Instance::start().await, Instance::start().await);
    let (elsewhere, decode) = (Instance::start().await, Instance::start().await);
    let (from, to) = (vec![sends.named(), prefill.named()], vec![elsewhere.named(), decode.named()]);
    let proxy = Proxy::start(options(), from, to).await;
    sends.does(Behaviour::Status(307));
    elsewhere.does(Behaviour::Status(307));
    for _ in 0..2 {
        assert_eq!(proxy.ask(&prompt(true)).await, (200, all_events()));
    }
    assert_eq!(prefill.had().len(), 2);
    decode.does(Behaviour::Status(302));
    let (status, said) = proxy.ask(&prompt(true)).await;
    assert!(status == 502 && said.contains("it answered 30"), "{status} {said}");
}

#[tokio::test]
async fn a_stream_that_begins_with_an_error_is_begun_elsewhere() {
    let (fails, good) = (Instance::start().await, Instance::start().await);
    let proxy = Proxy::start(options(), vec![], vec![fails.named(), good.named()]).await;
    const OF_THE_SERVER: &str = "data: {\"error\": {\"message\": \"no\", \"code\": 500}}\n\n";
    const OF_THE_REQUEST: &str = "data: {\"error\": {\"message\": \"no\", \"code\": 400}}\n\n";
    fails.does(Behaviour::Ends(OF_THE_SERVER));
    for _ in 0..2 {
        assert_eq!(proxy.ask(&prompt(true)).await, (200, all_events()));
    }
    good.does(Behaviour::Ends(OF_THE_SERVER));
    assert_eq!(proxy.ask(&prompt(true)).await, (200, OF_THE_SERVER.to_owned()), "what the last one says");
    for instance in [&fails, &good] {
        instance.does(Behaviour::Ends(OF_THE_REQUEST));
    }
    let before = fails.had().len() + good.had().len();
    assert_eq!(proxy.ask(&prompt(true)).await, (200, OF_THE_REQUEST.to_owned()));
    assert_eq!(fails.had().len() + good.had().len(), before + 1);
}

#[tokio::test]
async fn a_proxy_that_is_stopped_does_not_cut_off_what_a_slow_client_has_not_read_yet() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    const LONG: usize = 6 << 20;
    let decode = Instance::start().await;
    decode.does(Behaviour::Says(Box::leak("x".repeat(LONG).into_boxed_str())));
    let stop = Arc::new(tokio::sync::Notify::new());
    let (named, stopped) = (decode.named(), stop.clone());
    let (send, address) = tokio::sync::oneshot::channel();
    // As in a process of its own: nothing is sent any more when it is over.
    let ended = std::thread::spawn(move || {
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let server = ProxyServer::open(options(), vec![], vec![named]).await.unwrap();
            send.send(server.address()).unwrap();
            server.serve(&stopped).await;
        });
    });
    let mut socket = tokio::net::TcpStream::connect(address.await.unwrap()).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut got = vec![0; 1000];
    socket.read_exact(&mut got).await.unwrap();
    stop.notify_one();
    let mut piece = vec![0; 16 << 10];
    loop {
        let length = socket.read(&mut piece).await.unwrap();
        got.extend_from_slice(&piece[..length]);
        if length == 0 {
            break;
        }
        if got.len() > LONG / 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert!(got.len() > LONG && got.ends_with(&[b'x'; 1000]), "{}", got.len());
    ended.join().unwrap();
}

#[tokio::test]
async fn one_that_is_slow_to_answer_its_checks_holds_up_no_other_s_check() {
    let (slow, other) = (Instance::start().await, Instance::start().await);
    let proxy = Proxy::start(options(), vec![], vec![slow.named(), other.named()]).await;
    slow.is_silent();
    proxy.until(|_| slow.checked() > 0).await;
    let begun = std::time::Instant::now();
    other.is_unwell();
    proxy.until(|status| status["instances"][1]["health"] == json!("out of service")).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}: a check may take 5 s", begun.elapsed());
}

#[tokio::test]
async fn instances_that_are_not_there_yet_hold_up_the_start_all_at_once() {
    let mut there = Vec::new();
    for _ in 0..4 {
        let silent = Instance::start().await;
        silent.is_silent();
        there.push(silent);
    }
    let begun = std::time::Instant::now();
    let proxy = Proxy::start(options(), vec![], there.iter().map(Instance::named).collect()).await;
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}: each is waited for for 5 s", begun.elapsed());
    assert_eq!(proxy.status().await["decode_node_count"], json!(4));
}
