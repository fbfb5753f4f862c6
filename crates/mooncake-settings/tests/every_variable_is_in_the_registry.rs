//! No source reads a variable that `docs/settings.md` does not list.

use std::path::Path;

/// Quoted texts that look like variables of ours.
fn variables(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            variables(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs" || end == "py") {
            let text = std::fs::read_to_string(&path).unwrap();
            let quoted = text.split('"').skip(1).step_by(2);
            found.extend(quoted.filter(|text| is_variable(text)).map(str::to_owned));
        }
    }
}

fn is_variable(text: &str) -> bool {
    (text.starts_with("MC_") || text.starts_with("MOONCAKE_"))
        && !text.ends_with('_')
        && text.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

#[test]
fn every_variable_that_is_read_is_on_the_page() {
    // Asked for when it runs: a checkout that was moved keeps what cargo built in it.
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
    let root = Path::new(&crate_folder).join("../..");
    let mut found = Vec::new();
    variables(&root.join("python"), &mut found);
    for entry in std::fs::read_dir(root.join("crates")).unwrap() {
        let package = entry.unwrap().path();
        // What is not published is for tests, as their variables are.
        if !std::fs::read_to_string(package.join("Cargo.toml")).unwrap().contains("publish = false") {
            variables(&package.join("src"), &mut found);
        }
    }
    found.sort();
    found.dedup();
    assert!(found.len() > 20, "{found:?}");
    let page = mooncake_settings::reference_page();
    for variable in found {
        assert!(page.contains(&format!("| `{variable}` | ")), "{variable} is not in the registry");
    }
}
