//! `cargo xtask layers --show`: what a crate's imports are like, and layers that they would fit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::graph::{Edge, Graph};
use super::manifest::Manifest;

/// The circles, and a section for `layers.toml`: layers as low as they can be, with the imports that are against them.
pub fn layers(crate_: &Manifest, graph: &Graph, crates: &[Manifest]) -> String {
    let mut out = String::new();
    let files = graph.nodes().count();
    let circles = graph.circles();
    _ = writeln!(out, "# {}: {files} files, {} imports between them", crate_.name, graph.imports.len());
    for circle in &circles {
        let names: Vec<&str> = circle.iter().map(|&file| graph.files[file].as_str()).collect();
        let within = |&&(from, to): &&Edge| circle.contains(&from) && circle.contains(&to);
        let leaving = graph.imports.keys().filter(within).filter(|edge| !graph.is_within_a_folder(**edge)).count();
        let word =
            if leaving == 0 { "inside a folder".to_owned() } else { format!("{leaving} imports leave a folder") };
        _ = writeln!(out, "# circle of {} files, {word}: {}", circle.len(), names.join(" "));
    }
    let units = Units::of(graph);
    let order = units.order();
    let against = units.against(graph, &order);
    let own: Vec<&str> =
        crates.iter().map(|c| c.name.as_str()).filter(|name| crate_.normal.contains_key(*name)).collect();
    _ = writeln!(out, "[crates.{}]", crate_.name);
    _ = writeln!(out, "uses = {own:?}");
    _ = writeln!(out, "layers = [");
    for layer in units.layers(&order) {
        _ = writeln!(out, "    {layer:?},");
    }
    _ = writeln!(out, "]");
    exceptions(&mut out, graph, &against);
    let needed = enough(graph, &against);
    if !needed.is_empty() && needed != against {
        _ = writeln!(out, "# or, without layers, only what keeps circles out:");
        _ = writeln!(out, "layers = \"open\"");
        exceptions(&mut out, graph, &needed);
    }
    out
}

/// What a file imports, and what imports it.
pub fn file(graph: &Graph, file: &str) -> Result<String, String> {
    let number = graph
        .number(file)
        .ok_or_else(|| format!("there is no {file} among the files that count: {:?}", graph.files))?;
    let mut out = String::new();
    _ = writeln!(out, "{file} imports");
    for (&(_, to), import) in graph.imports.iter().filter(|((from, _), _)| *from == number) {
        _ = writeln!(out, "    {}    {}, line {}", graph.files[to], import.path, import.line);
    }
    _ = writeln!(out, "{file} is imported by");
    for (&(from, _), import) in graph.imports.iter().filter(|((_, to), _)| *to == number) {
        _ = writeln!(out, "    {}    {}, line {}", graph.files[from], import.path, import.line);
    }
    Ok(out)
}

fn exceptions(out: &mut String, graph: &Graph, edges: &BTreeSet<Edge>) {
    if edges.is_empty() {
        return;
    }
    _ = writeln!(out, "exceptions = [");
    for &edge in edges {
        _ = writeln!(out, "    {:?}, # {}", graph.name(edge), graph.import(edge).path);
    }
    _ = writeln!(out, "]");
}

/// As few of these imports as keep circles out when they are excepted.
fn enough(graph: &Graph, against: &BTreeSet<Edge>) -> BTreeSet<Edge> {
    let mut needed: BTreeSet<Edge> = against.iter().copied().filter(|&edge| !graph.is_within_a_folder(edge)).collect();
    needed.extend(graph.in_circles(&needed));
    for edge in needed.clone() {
        needed.remove(&edge);
        if graph.way(edge.1, edge.0, &needed).is_some() {
            needed.insert(edge);
        }
    }
    needed
}

/// Files and folders directly in `src`, with how many imports go from one to another.
struct Units {
    names: Vec<String>,
    imports: BTreeMap<Edge, usize>,
    files: BTreeMap<usize, usize>,
}

impl Units {
    fn of(graph: &Graph) -> Self {
        let files: Vec<usize> = graph.nodes().filter(|file| !graph.roots.contains(file)).collect();
        let names: BTreeSet<String> = files.iter().map(|&file| graph.unit(file).to_owned()).collect();
        let names: Vec<String> = names.into_iter().collect();
        let unit = |&file: &usize| names.iter().position(|name| name == graph.unit(file)).map(|unit| (file, unit));
        let files: BTreeMap<usize, usize> = files.iter().filter_map(unit).collect();
        let mut imports = BTreeMap::new();
        for (from, to) in graph.imports.keys() {
            if let (Some(from), Some(to)) = (files.get(from), files.get(to))
                && from != to
            {
                *imports.entry((*from, *to)).or_insert(0) += 1;
            }
        }
        Self { names, imports, files }
    }

    /// From the bottom up, with as few imports upwards as moving one unit after the other finds.
    fn order(&self) -> Vec<usize> {
        let weight = |from: usize, to: usize| self.imports.get(&(from, to)).copied().unwrap_or(0);
        // Begins with what imports least beside what it is imported by.
        let mut left: Vec<usize> = (0..self.names.len()).collect();
        let mut order = Vec::new();
        while !left.is_empty() {
            let balance = |&unit: &usize| {
                let of = |out: bool| {
                    left.iter().map(|&o| if out { weight(unit, o) } else { weight(o, unit) }).sum::<usize>()
                };
                let (out, into) = (of(true) as i64, of(false) as i64);
                (if out == 0 { i64::MIN } else { out - into }, unit)
            };
            let Some(next) = left.iter().copied().min_by_key(balance) else { break };
            left.retain(|&unit| unit != next);
            order.push(next);
        }
        loop {
            let mut is_better = false;
            for unit in 0..self.names.len() {
                let mut others = order.clone();
                others.retain(|&other| other != unit);
                let upwards = |at: usize| {
                    let above = others[at..].iter().map(|&other| weight(unit, other));
                    above.chain(others[..at].iter().map(|&other| weight(other, unit))).sum::<usize>()
                };
                let now = order.iter().position(|&other| other == unit).unwrap_or(0);
                let Some(best) = (0..=others.len()).min_by_key(|&at| upwards(at)) else { continue };
                if upwards(best) < upwards(now) {
                    others.insert(best, unit);
                    order = others;
                    is_better = true;
                }
            }
            if !is_better {
                return order;
            }
        }
    }

    fn layers(&self, order: &[usize]) -> Vec<Vec<&str>> {
        let mut layer_of: BTreeMap<usize, usize> = BTreeMap::new();
        for (at, &unit) in order.iter().enumerate() {
            let below = order[..at].iter().filter(|&&other| self.imports.contains_key(&(unit, other)));
            let layer = below.map(|other| layer_of[other] + 1).max().unwrap_or(0);
            layer_of.insert(unit, layer);
        }
        let mut layers = vec![Vec::new(); layer_of.values().max().map_or(0, |max| max + 1)];
        for (unit, layer) in layer_of {
            layers[layer].push(self.names[unit].as_str());
        }
        layers
    }

    /// The imports that are against an order, those of a root's own items included.
    fn against(&self, graph: &Graph, order: &[usize]) -> BTreeSet<Edge> {
        let rank = |file: &usize| self.files.get(file).and_then(|unit| order.iter().position(|other| other == unit));
        let is_against = |(from, to): &&Edge| match (rank(from), rank(to)) {
            (Some(from), Some(to)) => from < to,
            (from, None) => from.is_some(),
            _ => false,
        };
        graph.imports.keys().filter(is_against).copied().collect()
    }
}
