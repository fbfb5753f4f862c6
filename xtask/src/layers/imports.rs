//! Which file of a crate imports which other one. A name that a folder's head or `lib.rs` hands on counts for the file
//! that defines it.

use std::collections::{BTreeMap, BTreeSet};

use super::mentions::Kind;
use super::source::Sources;

/// Imports between files, by their numbers: who, whom; where and by which path first.
pub type Imports = BTreeMap<(usize, usize), Import>;

#[derive(Debug, Clone)]
pub struct Import {
    pub line: usize,
    pub path: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    Module(usize),
    /// Something that a file defines.
    Item(usize),
    /// Another crate's.
    Foreign,
}

/// All imports of the files that count.
pub fn imports(sources: &Sources) -> Imports {
    let mut imports = Imports::new();
    for (number, module) in sources.modules.iter().enumerate() {
        if module.is_test || !sources.counts(module.file) {
            continue;
        }
        for mention in module.mentions.iter().filter(|mention| !mention.is_test) {
            // A variable may have the name of a module; a name from a `use` counts there.
            let is_variable = mention.kind == Kind::Inline && mention.path.len() == 1;
            for found in resolve(sources, number, &mention.path, &mut BTreeSet::new()) {
                let file = match found {
                    Found::Module(_) if is_variable => continue,
                    Found::Module(module) => sources.modules[module].file,
                    Found::Item(file) => file,
                    Found::Foreign => continue,
                };
                if file == module.file || !sources.counts(file) {
                    continue;
                }
                let import = Import { line: mention.line, path: mention.path.join("::") };
                imports.entry((module.file, file)).or_insert(import);
            }
        }
    }
    imports
}

/// Whether the first name of a path means something of the crate.
pub fn is_in_scope(sources: &Sources, module: usize, name: &str) -> bool {
    let known = &sources.modules[module];
    known.children.contains_key(name)
        || known.items.contains(name)
        || known.mentions.iter().any(
            |mention| matches!(&mention.kind, Kind::Use { name: n, .. } if n == name && mention.path[..] != [name]),
        )
}

type Visited = BTreeSet<(usize, String)>;

fn resolve(sources: &Sources, module: usize, path: &[String], visited: &mut Visited) -> Vec<Found> {
    let Some(first) = path.first() else { return Vec::new() };
    let (mut here, mut rest) = match first.as_str() {
        "crate" => (sources.root_of(module), &path[1..]),
        "self" => (module, &path[1..]),
        "super" => (module, path),
        _ => {
            let mut found = step(sources, module, first, true, visited);
            if found.is_empty() {
                found.push(Found::Foreign);
            }
            return follow(sources, found, &path[1..], visited);
        }
    };
    while let Some(("super", after)) = rest.split_first().map(|(name, after)| (name.as_str(), after)) {
        here = sources.modules[here].parent.unwrap_or(here);
        rest = after;
    }
    follow(sources, vec![Found::Module(here)], rest, visited)
}

/// What the rest of a path means, after its beginning means this.
fn follow(sources: &Sources, found: Vec<Found>, rest: &[String], visited: &mut Visited) -> Vec<Found> {
    let Some(name) = rest.first() else { return found };
    let has_module = found.iter().any(|found| matches!(found, Found::Module(_)));
    let mut all = Vec::new();
    for found in found {
        match found {
            Found::Module(module) => {
                let mut next = step(sources, module, name, false, visited);
                if next.is_empty() && !visited.contains(&(module, name.clone())) {
                    // A name that a macro or a build script has made lies where its module does.
                    next.push(Found::Item(sources.modules[module].file));
                }
                all.extend(follow(sources, next, &rest[1..], visited));
            }
            // Variants and associated items lie with their type.
            Found::Item(_) if has_module => {}
            Found::Item(_) | Found::Foreign => all.push(found),
        }
    }
    all
}

/// What a name means in a module, seen from within or from elsewhere.
fn step(sources: &Sources, module: usize, name: &str, is_within: bool, visited: &mut Visited) -> Vec<Found> {
    if !visited.insert((module, name.to_owned())) {
        return Vec::new();
    }
    let known = &sources.modules[module];
    let mut all: Vec<Found> = known.children.get(name).map(|&child| Found::Module(child)).into_iter().collect();
    if known.items.contains(name) {
        all.push(Found::Item(known.file));
    }
    for mention in known.mentions.iter().filter(|mention| !mention.is_test) {
        if let Kind::Use { name: imported, is_local } = &mention.kind
            && imported == name
            && (is_within || !is_local)
        {
            all.extend(resolve(sources, module, &mention.path, visited));
        }
    }
    if all.is_empty() {
        for mention in known.mentions.iter().filter(|mention| mention.kind == Kind::Glob && !mention.is_test) {
            for found in resolve(sources, module, &mention.path, visited) {
                if let Found::Module(other) = found {
                    all.extend(step(sources, other, name, false, visited));
                }
            }
        }
    }
    visited.remove(&(module, name.to_owned()));
    all.sort();
    all.dedup();
    all
}
