//! What must hold of a crate: imports go to lower layers, no circle leaves a folder, every file has its layer, and what
//! is excepted needs to be.

use std::collections::{BTreeMap, BTreeSet};

use super::graph::{Edge, Graph};
use super::manifest::Manifest;
use super::source::Sources;
use super::table::{self, Layers, Section, Table};
use crate::fault::Fault;

/// Holds one crate against its section.
pub fn check(crate_: &Manifest, sources: &Sources, table: &Table, section: &Section, faults: &mut Vec<Fault>) {
    let graph = Graph::of(sources);
    let check = Check { crate_, graph: &graph, table, section };
    for orphan in &sources.orphans {
        let file = format!("{}/src/{orphan}", crate_.folder);
        faults.push(Fault::new(file, 0, "no `mod` line leads to this file", "declare it, or delete it"));
    }
    let exceptions = check.exceptions(faults);
    let upward = match &section.layers {
        Layers::Open(_) => BTreeSet::new(),
        Layers::Listed(layers) => check.upward(layers, &exceptions, faults),
    };
    check.circles(&exceptions, &upward, faults);
    for &edge in &exceptions {
        let is_circle = !graph.is_within_a_folder(edge) && graph.way(edge.1, edge.0, &exceptions).is_some();
        if !upward.contains(&edge) && !is_circle {
            let what = format!("the exception \"{}\" is against no rule any more", graph.name(edge));
            faults.push(check.in_table(&graph.name(edge), what, "delete this line"));
        }
    }
}

/// Holds the crates that a crate is linked with against its section.
pub fn check_edges(crate_: &Manifest, names: &[&str], table: &Table, section: &Section, faults: &mut Vec<Fault>) {
    for (name, &line) in crate_.normal.iter().filter(|(name, _)| names.contains(&name.as_str())) {
        if !section.uses.contains(name) {
            let what = format!("{} depends on {name}, which its `uses` in {} leaves out", crate_.name, table::PATH);
            let remedy = "do without it, or move what needs it to a crate that may; the table is the architecture";
            faults.push(Fault::new(format!("{}/Cargo.toml", crate_.folder), line, what, remedy));
        }
    }
    for name in section.uses.iter().filter(|name| !crate_.normal.contains_key(*name)) {
        let what = format!("{} may use {name}, and does not", crate_.name);
        let line = table.line_of(&crate_.name, name);
        faults.push(Fault::new(table::PATH, line, what, format!("delete \"{name}\" from its `uses`")));
    }
}

struct Check<'a> {
    crate_: &'a Manifest,
    graph: &'a Graph,
    table: &'a Table,
    section: &'a Section,
}

impl Check<'_> {
    fn in_table(&self, entry: &str, what: String, remedy: &str) -> Fault {
        Fault::new(
            table::PATH,
            self.table.line_of(&self.crate_.name, entry),
            format!("{}: {what}", self.crate_.name),
            remedy,
        )
    }

    fn at(&self, edge: Edge, what: String, remedy: &str) -> Fault {
        let file = format!("{}/src/{}", self.crate_.folder, self.graph.files[edge.0]);
        Fault::new(file, self.graph.import(edge).line, what, remedy)
    }

    /// The imports that are excepted, as far as there are such imports.
    fn exceptions(&self, faults: &mut Vec<Fault>) -> BTreeSet<Edge> {
        let mut exceptions = BTreeSet::new();
        for text in &self.section.exceptions {
            let edge =
                text.split_once(" -> ").and_then(|(from, to)| Some((self.graph.number(from)?, self.graph.number(to)?)));
            match edge.filter(|edge| self.graph.imports.contains_key(edge)) {
                Some(edge) => _ = exceptions.insert(edge),
                None => {
                    let what = format!("the exception \"{text}\" excepts nothing: there is no such import");
                    faults.push(self.in_table(text, what, "delete this line"));
                }
            }
        }
        exceptions
    }

    /// The imports that do not go to a lower layer.
    fn upward(&self, layers: &[Vec<String>], exceptions: &BTreeSet<Edge>, faults: &mut Vec<Fault>) -> BTreeSet<Edge> {
        let layer_of = self.layers(layers, faults);
        let mut upward = BTreeSet::new();
        for (&edge, import) in &self.graph.imports {
            let (from, to) = edge;
            let is_within =
                self.graph.unit(from) == self.graph.unit(to) && self.graph.unit(from) != self.graph.files[from];
            let is_root = self.graph.roots.contains(&to);
            if self.graph.roots.contains(&from) || is_within {
                continue;
            }
            let (Some(&own), other) = (layer_of.get(&from), layer_of.get(&to)) else { continue };
            let is_down = other.is_some_and(|&other| other < own) && !is_root;
            if is_down || other.is_none() && !is_root {
                continue;
            }
            upward.insert(edge);
            if exceptions.contains(&edge) {
                continue;
            }
            let above = match other {
                Some(other) if !is_root => format!("of layer {other}"),
                _ => "which stands above all layers".to_owned(),
            };
            let what = format!("`{}` imports {}, {above}, into layer {own}", import.path, self.graph.files[to]);
            let remedy = "an import goes to a lower layer or stays in its folder: move what both need further down, \
                or hand it in from above";
            faults.push(self.at(edge, what, remedy));
        }
        upward
    }

    /// The layer of each file, from 1.
    fn layers(&self, layers: &[Vec<String>], faults: &mut Vec<Fault>) -> BTreeMap<usize, usize> {
        let mut layer_of = BTreeMap::new();
        for (layer, entries) in layers.iter().enumerate() {
            for entry in entries {
                for path in table::expand(entry) {
                    let folder = format!("{path}/");
                    let is_named =
                        |&at: &usize| self.graph.files[at] == path || self.graph.files[at].starts_with(&folder);
                    let named: Vec<usize> = self.graph.nodes().filter(is_named).collect();
                    if named.is_empty() {
                        let what = format!("layer {} names {path}, and there is no such file or folder", layer + 1);
                        faults.push(self.in_table(entry, what, "correct the entry, or delete it"));
                    }
                    for file in named {
                        if let Some(before) = layer_of.insert(file, layer + 1) {
                            let what =
                                format!("{} is in layer {before} and in layer {}", self.graph.files[file], layer + 1);
                            faults.push(self.in_table(entry, what, "name it once"));
                        }
                    }
                }
            }
        }
        for file in self.graph.nodes() {
            let path = &self.graph.files[file];
            if self.graph.roots.contains(&file) || layer_of.contains_key(&file) {
                continue;
            }
            // The head of a folder is where the folder is.
            let folder = path.strip_suffix("mod.rs").filter(|folder| !folder.is_empty());
            let beside = folder.and_then(|folder| {
                let inside = layer_of.iter().filter(|(other, _)| self.graph.files[**other].starts_with(folder));
                inside.map(|(_, &layer)| layer).max()
            });
            if let Some(layer) = beside {
                layer_of.insert(file, layer);
                continue;
            }
            let what = format!("this file has no layer in {}", table::PATH);
            let remedy =
                format!("add it to the layer above what it imports (cargo xtask layers --show {})", self.crate_.name);
            faults.push(Fault::new(format!("{}/src/{path}", self.crate_.folder), 0, what, remedy));
        }
        layer_of
    }

    /// One fault for each circle that leaves a folder, unless an upward import in it says so already.
    fn circles(&self, exceptions: &BTreeSet<Edge>, upward: &BTreeSet<Edge>, faults: &mut Vec<Fault>) {
        let mut told: BTreeSet<usize> = BTreeSet::new();
        for edge in self.graph.in_circles(exceptions) {
            let Some(way) = self.graph.way(edge.1, edge.0, exceptions) else { continue };
            let steps: Vec<Edge> = way.windows(2).map(|pair| (pair[0], pair[1])).chain([edge]).collect();
            if way.iter().any(|file| told.contains(file)) || steps.iter().any(|step| upward.contains(step)) {
                continue;
            }
            told.extend(&way);
            let mut what = format!("a circle of imports leaves a folder: {}", self.graph.files[edge.0]);
            for step in [edge].iter().chain(&steps[..steps.len() - 1]) {
                what += &format!(" -> {} (line {})", self.graph.files[step.1], self.graph.import(*step).line);
            }
            let remedy = "break it: move what both need further down, or hand it in from above";
            faults.push(self.at(edge, what, remedy));
        }
    }
}
