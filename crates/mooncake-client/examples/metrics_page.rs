//! Writes `docs/metrics.md`: `make reference`.

fn main() -> std::io::Result<()> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    std::fs::write(
        page,
        mooncake_master::metrics_page() + &mooncake_client::metrics_page() + &mooncake_proxy::metrics_page(),
    )
}
