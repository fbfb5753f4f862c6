//! `cargo xtask reference`: pages of `docs` and the C header, made from the code.
//!
//! A program of its own, since it is built of the crates that the pages tell of, for which the checks do not wait.

mod c_header;

use std::path::Path;
use std::process::ExitCode;

const C_LIBRARY: &str = "crates/mooncake-transfer-engine-c";

/// A file of the repository with the text that it is to have.
struct Page {
    path: String,
    text: String,
}

/// In the repository's folder: writes what is stale, or says with `--check` what that is.
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => write(Path::new(".")),
        ["--check"] => check(Path::new(".")),
        _ => Err("cargo xtask reference [--check]".to_owned()),
    };
    done.unwrap_or_else(|problem| {
        eprintln!("{problem}");
        ExitCode::from(2)
    })
}

fn write(root: &Path) -> Result<ExitCode, String> {
    for page in stale(root)? {
        std::fs::write(root.join(&page.path), page.text).map_err(|error| format!("{}: {error}", page.path))?;
        println!("wrote {}", page.path);
    }
    Ok(ExitCode::SUCCESS)
}

fn check(root: &Path) -> Result<ExitCode, String> {
    let stale = stale(root)?;
    for page in &stale {
        eprintln!("{}: is stale; run `make reference`", page.path);
    }
    Ok(if stale.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn stale(root: &Path) -> Result<Vec<Page>, String> {
    let mut pages = pages(root)?;
    pages.retain(|page| std::fs::read_to_string(root.join(&page.path)).ok().as_ref() != Some(&page.text));
    Ok(pages)
}

fn pages(root: &Path) -> Result<Vec<Page>, String> {
    let source = format!("{C_LIBRARY}/src/lib.rs");
    let read = std::fs::read_to_string(root.join(&source)).map_err(|error| format!("{source}: {error}"))?;
    let metrics = [mooncake_master::metrics_page(), mooncake_client::metrics_page(), mooncake_proxy::metrics_page()];
    Ok(vec![
        Page { path: "docs/settings.md".to_owned(), text: mooncake_settings::reference_page() },
        Page { path: "docs/metrics.md".to_owned(), text: metrics.concat() },
        Page {
            path: format!("{C_LIBRARY}/include/transfer_engine_c.h"),
            text: c_header::header(&read).map_err(|error| format!("{source}:{error}"))?,
        },
    ])
}
