//! Writes `docs/settings.md`: `make reference`.

fn main() -> std::io::Result<()> {
    // Asked for when it runs: a checkout that was moved keeps what cargo built in it.
    let crate_folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
    let page = format!("{crate_folder}/../../docs/settings.md");
    std::fs::write(page, mooncake_settings::reference_page())
}
