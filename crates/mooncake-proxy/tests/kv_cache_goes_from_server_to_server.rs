//! KV cache from server to server, as vLLM's `MooncakeConnector` has it: what the two are told, and what happens when
//! there is nothing to fetch.

use std::time::Duration;

use mooncake_proxy::ProxyOptions;
use serde_json::{Value, json};

use crate::mock_instances::{Behaviour, Instance, KEY, Proxy, all_events, options, prompt};

#[tokio::test]
async fn peer_to_peer_instances_are_told_of_each_other() {
    let (prefill, decode) = (Instance::start().await, Instance::start().await);
    let proxy = Proxy::start(options(), vec![prefill.with_bootstrap()], vec![decode.named()]).await;
    assert_eq!(proxy.ask(&prompt(true)).await.0, 200);
    let (asked, answered) = (prefill.had()[0].body.clone(), decode.had()[0].body.clone());
    let (out, back) = (&asked["kv_transfer_params"], &answered["kv_transfer_params"]);
    assert_eq!((&out["do_remote_decode"], &out["do_remote_prefill"]), (&json!(true), &json!(false)));
    assert_eq!((&back["do_remote_decode"], &back["do_remote_prefill"]), (&json!(false), &json!(true)));
    assert_eq!(back["remote_engine_id"], json!("engine-7"));
    assert_eq!(back["remote_bootstrap_addr"], json!(format!("http://{}", prefill.address)));
    assert!(out["transfer_id"].is_string() && out["transfer_id"] == back["transfer_id"]);
    assert_eq!(answered["max_tokens"], json!(64));
}

#[tokio::test]
async fn several_engines_behind_a_prefill_instance_take_turns() {
    let (prefill, decode) = (Instance::start().await, Instance::start().await);
    prefill.has_engines(&["a", "b"]);
    let proxy = Proxy::start(options(), vec![prefill.with_bootstrap()], vec![decode.named()]).await;
    for _ in 0..4 {
        assert_eq!(proxy.ask(&prompt(true)).await.0, 200);
    }
    let ranks: Vec<String> =
        prefill.had().iter().map(|had| had.headers["x-data-parallel-rank"].to_str().unwrap().to_owned()).collect();
    let engines: Vec<Value> =
        decode.had().iter().map(|had| had.body["kv_transfer_params"]["remote_engine_id"].clone()).collect();
    for (rank, engine) in ranks.iter().zip(&engines) {
        assert_eq!(*engine, json!(["a", "b"][rank.parse::<usize>().unwrap()]));
    }
    assert_eq!(ranks.iter().filter(|rank| *rank == "0").count(), 2, "{ranks:?}");
    // One that is started anew has other engines.
    prefill.has_engines(&["c"]);
    for _ in 0..400 {
        assert_eq!(proxy.ask(&prompt(true)).await.0, 200);
        if decode.had().last().unwrap().body["kv_transfer_params"]["remote_engine_id"] == json!("c") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("its new engine is not known");
}

#[tokio::test]
async fn a_prefill_instance_without_its_bootstrap_service_is_not_added() {
    let (decode, bare) = (Instance::start().await, Instance::start().await);
    let proxy = Proxy::start(options(), vec![], vec![decode.named()]).await;
    bare.has_engines(&[]);
    let port = bare.address.port();
    let body = json!({"type": "prefill", "instance": bare.address.to_string(), "bootstrap_port": port}).to_string();
    let (status, said) = proxy.post("/instances/add", &[("x-api-key", KEY)], body.clone()).await;
    assert!(status == 400 && said.contains("bootstrap"), "{status} {said}");
    bare.has_engines(&["a"]);
    assert_eq!(proxy.post("/instances/add", &[("x-api-key", KEY)], body).await.0, 200);
}

/// Whether the last request that it had is to fetch.
fn fetches(decode: &Instance) -> bool {
    decode.had().last().unwrap().body.get("kv_transfer_params").is_some()
}

#[tokio::test]
async fn several_prompts_or_answers_in_one_request_are_computed_where_they_are_decoded() {
    let (prefill, decode) = (Instance::start().await, Instance::start().await);
    let proxy = Proxy::start(options(), vec![prefill.with_bootstrap()], vec![decode.named()]).await;
    // All of them would have one transfer.
    for several in [json!({"prompt": ["a", "b"]}), json!({"prompt": [[1], [2]]}), json!({"prompt": "a", "n": 2})] {
        assert_eq!(proxy.ask(&several).await.0, 200);
        assert!(!fetches(&decode), "{several}");
    }
    assert_eq!(prefill.had().len(), 0);
    let metrics = proxy.get("/metrics").await.1;
    assert!(metrics.contains("\nmooncake_proxy_decode_only_total{reason=\"not_fetchable\"} 3\n"), "{metrics}");
    for one in [json!({"prompt": "a", "n": 1}), json!({"prompt": [1, 2]}), json!({"messages": [{"content": "a"}]})] {
        assert_eq!(proxy.ask(&one).await.0, 200);
        assert!(fetches(&decode), "{one}");
    }
    // Through the pool each finds its blocks by itself.
    let pool = Instance::start().await;
    let proxy = Proxy::start(options(), vec![pool.named(), prefill.with_bootstrap()], vec![decode.named()]).await;
    for _ in 0..2 {
        assert_eq!(proxy.ask(&json!({"prompt": ["a", "b"]})).await.0, 200);
    }
    assert_eq!(pool.had().len(), 2);
}

#[tokio::test]
async fn a_prompt_whose_answer_ends_with_its_first_token_is_not_fetched() {
    let (prefill, decode) = (Instance::start().await, Instance::start().await);
    let proxy = Proxy::start(options(), vec![prefill.with_bootstrap()], vec![decode.named()]).await;
    for (answer, is_there) in [
        (r#"{"choices":[{"finish_reason":"length"}]}"#, true),
        (r#"{"choices":[{"finish_reason":"stop"}]}"#, false),
        ("so it is", false),
    ] {
        prefill.does(Behaviour::Says(answer));
        assert_eq!(proxy.ask(&prompt(true)).await, (200, all_events()));
        assert_eq!(fetches(&decode), is_there, "{answer}");
    }
    assert_eq!(prefill.had()[0].body["ignore_eos"], json!(true));
}

#[tokio::test]
async fn a_decode_instance_that_waits_for_a_prefill_instance_that_died_computes_the_prompt() {
    let (prefill, decode) = (Instance::start().await, Instance::start().await);
    let proxy = Proxy::start(options(), vec![prefill.with_bootstrap()], vec![decode.named()]).await;
    decode.does(Behaviour::CannotFetch(None));
    let asked = async {
        let answer = proxy.ask(&prompt(true)).await;
        assert_eq!(answer, (200, all_events()));
    };
    let dies = async {
        while decode.had().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let held = proxy.status().await["instances"][0]["in_flight"].clone();
        assert_eq!(held, json!(1), "it has work until it is fetched");
        prefill.stop().await;
    };
    tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(asked, dies) }).await.expect("it does not wait");
    assert_eq!(decode.had().len(), 2);
    assert!(!fetches(&decode));
    let instances = proxy.until(|status| status["running"] == json!(0)).await["instances"].clone();
    assert!(instances.as_array().unwrap().iter().all(|one| one["in_flight"] == json!(0)), "{instances}");
}

#[tokio::test]
async fn a_decode_instance_that_could_not_fetch_is_asked_again_to_compute() {
    let (prefill, decode) = (Instance::start().await, Instance::start().await);
    let seldom = ProxyOptions { check_interval: Duration::from_secs(3600), ..options() };
    let proxy = Proxy::start(seldom, vec![prefill.with_bootstrap()], vec![decode.named()]).await;
    decode.does(Behaviour::CannotFetch(Some(500)));
    for _ in 0..5 {
        assert_eq!(proxy.ask(&prompt(true)).await, (200, all_events()));
    }
    let status = proxy.status().await;
    assert_eq!(status["instances"][1]["health"], json!("ok"), "it does what it can: {status}");
    decode.does(Behaviour::Status(500));
    assert_eq!(proxy.ask(&prompt(true)).await.0, 500, "once more, and no more");
    assert_eq!(decode.had().len(), 12);
}
