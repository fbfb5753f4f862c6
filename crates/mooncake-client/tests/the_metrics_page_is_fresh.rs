//! `docs/metrics.md` says what the `/metrics` of masters, clients and the proxy tell.

#[test]
fn the_page_in_docs_is_the_one_that_the_code_makes() {
    // Asked for when it runs: a checkout that was moved keeps what cargo built in it.
    let crate_folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
    let page = format!("{crate_folder}/../../docs/metrics.md");
    let written = std::fs::read_to_string(page).expect("docs/metrics.md");
    let made = mooncake_master::metrics_page() + &mooncake_client::metrics_page() + &mooncake_proxy::metrics_page();
    assert!(written == made, "docs/metrics.md is stale: run `make reference`");
}
