//! Writes `docs/settings.md`: `make reference`.

fn main() -> std::io::Result<()> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
    std::fs::write(page, mooncake_settings::reference_page())
}
