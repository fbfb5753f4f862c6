//! `cargo xtask`: checks of this repository that no compiler makes. `make lint` runs all of them.
//!
//! `layers` holds the imports of every crate against `xtask/layers.toml`, `words` the texts against `xtask/words.toml`.

mod fault;
mod layers;
mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fault::Fault;

const USAGE: &str = "\
cargo xtask layers                      check imports, crate edges and machines against xtask/layers.toml
cargo xtask layers --show CRATE         circles of the crate's files, and layers that they could have
cargo xtask layers --show CRATE FILE    what the file imports, and what imports it
cargo xtask words                       check texts: retired names, long lines, paths that are not there
cargo xtask words --wrap [FILE...]      wrap what is too long of comments and prose";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = root().and_then(|root| match args[..] {
        ["layers"] => layers::check(&root).map(report),
        ["layers", "--show", name] => layers::show(&root, name, None).map(print),
        ["layers", "--show", name, file] => layers::show(&root, name, Some(file)).map(print),
        ["words"] => words::check(&root).map(report),
        ["words", "--wrap", ref files @ ..] => words::wrap(&root, files).map(print),
        _ => Err(USAGE.to_owned()),
    });
    done.unwrap_or_else(|problem| {
        eprintln!("{problem}");
        ExitCode::from(2)
    })
}

/// The repository's folder, found from the current one: a checkout may have moved since this was built.
fn root() -> Result<PathBuf, String> {
    let here = std::env::current_dir().map_err(|error| format!("there is no current folder: {error}"))?;
    let found = here.ancestors().find(|folder| folder.join("xtask/layers.toml").exists()).map(Path::to_owned);
    found.ok_or_else(|| format!("{} lies in no repository with an xtask/layers.toml", here.display()))
}

fn report(mut faults: Vec<Fault>) -> ExitCode {
    faults.sort();
    faults.dedup();
    for fault in &faults {
        eprintln!("{fault}");
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(text: String) -> ExitCode {
    print!("{text}");
    ExitCode::SUCCESS
}
