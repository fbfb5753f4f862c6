//! `cargo xtask layers`: imports against layers.

mod graph;
mod imports;
mod machines;
mod manifest;
mod mentions;
mod rules;
mod show;
mod source;
mod table;

use std::path::Path;

use crate::fault::Fault;
use graph::Graph;
use source::Sources;
use table::Table;

/// Everything that is against the table.
pub fn check(root: &Path) -> Result<Vec<Fault>, String> {
    let table = Table::read(root)?;
    let crates = manifest::workspace(root)?;
    let names: Vec<&str> = crates.iter().map(|crate_| crate_.name.as_str()).collect();
    let mut faults = Vec::new();
    for crate_ in &crates {
        let Some(section) = table.crates.get(&crate_.name) else {
            let what = format!("{} has no section in {}", crate_.name, table::PATH);
            let remedy =
                format!("add [crates.{0}] with `uses` and `layers` (cargo xtask layers --show {0})", crate_.name);
            faults.push(Fault::new(format!("{}/Cargo.toml", crate_.folder), 0, what, remedy));
            continue;
        };
        let sources = Sources::read(&root.join(&crate_.folder))?;
        rules::check_edges(crate_, &names, &table, section, &mut faults);
        rules::check(crate_, &sources, &table, section, &mut faults);
        machines::check(root, crate_, &sources, &table.machines, &mut faults)?;
    }
    for name in table.crates.keys().filter(|name| !names.contains(&name.as_str())) {
        let line = table.line_of(name, "");
        faults.push(Fault::new(table::PATH, line, format!("there is no crate {name}"), "delete its section"));
    }
    Ok(faults)
}

/// The circles of a crate and layers that it could have, or the imports of one of its files.
pub fn show(root: &Path, name: &str, file: Option<&str>) -> Result<String, String> {
    let crates = manifest::workspace(root)?;
    let is_named = |crate_: &&manifest::Manifest| crate_.name == name || crate_.name == format!("mooncake-{name}");
    let crate_ = crates.iter().find(is_named).ok_or_else(|| {
        let names: Vec<&str> = crates.iter().map(|crate_| crate_.name.as_str()).collect();
        format!("there is no crate {name}; there are {}", names.join(", "))
    })?;
    let graph = Graph::of(&Sources::read(&root.join(&crate_.folder))?);
    match file {
        None => Ok(show::layers(crate_, &graph, &crates)),
        Some(file) => show::file(&graph, file),
    }
}
