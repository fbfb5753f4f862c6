//! Writes `docs/metrics.md`: `make reference`.

fn main() -> std::io::Result<()> {
    // Asked for when it runs: a checkout that was moved keeps what cargo built in it.
    let crate_folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
    let page = format!("{crate_folder}/../../docs/metrics.md");
    std::fs::write(
        page,
        mooncake_master::metrics_page() + &mooncake_client::metrics_page() + &mooncake_proxy::metrics_page(),
    )
}
