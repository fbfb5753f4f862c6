//! `cargo xtask`: checks of this repository that no compiler makes, which `make lint` runs, and pages made from the
//! code, which `make reference` writes.
//!
//! `layers` holds the imports of every crate against `xtask/layers.toml`, `words` the texts against `xtask/words.toml`.

mod fault;
mod layers;
mod words;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use fault::Fault;

const USAGE: &str = "\
cargo xtask layers                      check imports, crate edges and machines against xtask/layers.toml
cargo xtask layers --show CRATE         circles of the crate's files, and layers that they could have
cargo xtask layers --show CRATE FILE    what the file imports, and what imports it
cargo xtask words                       check texts: retired names, long lines, paths that are not there
cargo xtask words --wrap [FILE...]      wrap what is too long of comments and prose
cargo xtask reference                   write pages and the C header from the code
cargo xtask reference --check           check that they are what the code makes of them";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = root().and_then(|root| match args[..] {
        ["layers"] => layers::check(&root).map(report),
        ["layers", "--show", name] => layers::show(&root, name, None).map(print),
        ["layers", "--show", name, file] => layers::show(&root, name, Some(file)).map(print),
        ["reference", ref args @ ..] => reference(&root, args),
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

/// A program of its own, which is built of the crates that the pages tell of.
fn reference(root: &Path, args: &[&str]) -> Result<ExitCode, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let program = ["run", "--quiet", "--locked", "--package", "xtask", "--bin", "reference", "--"];
    let ended = Command::new(cargo).args(program).args(args).current_dir(root).status();
    let code = ended.map_err(|error| format!("cargo cannot be run: {error}"))?.code();
    Ok(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
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
