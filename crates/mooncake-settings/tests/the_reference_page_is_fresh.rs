//! `docs/settings.md` says what the registry says.

#[test]
fn the_page_in_docs_is_the_one_that_the_registry_makes() {
    // Asked for when it runs: a checkout that was moved keeps what cargo built in it.
    let crate_folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
    let page = format!("{crate_folder}/../../docs/settings.md");
    let written = std::fs::read_to_string(page).expect("docs/settings.md");
    assert!(written == mooncake_settings::reference_page(), "docs/settings.md is stale: run `make reference`");
}
