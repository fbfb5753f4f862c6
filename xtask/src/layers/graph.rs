//! The files of a crate and their imports: who reaches whom, and which circles leave a folder.

use std::collections::BTreeSet;

use super::imports::{Import, Imports};
use super::source::Sources;

/// The files of a crate that count, with the imports between them.
#[derive(Debug)]
pub struct Graph {
    /// By number; what does not count has an empty name.
    pub files: Vec<String>,
    pub roots: BTreeSet<usize>,
    pub imports: Imports,
}

/// An import, by the numbers of its files.
pub type Edge = (usize, usize);

impl Graph {
    pub fn of(sources: &Sources) -> Self {
        let counted = |(at, file): (usize, &String)| if sources.counts(at) { file.clone() } else { String::new() };
        let files = sources.files.iter().enumerate().map(counted).collect();
        Self { files, roots: sources.roots.clone(), imports: super::imports::imports(sources) }
    }

    /// The numbers of the files that count.
    pub fn nodes(&self) -> impl Iterator<Item = usize> {
        (0..self.files.len()).filter(|&at| !self.files[at].is_empty())
    }

    pub fn number(&self, file: &str) -> Option<usize> {
        self.nodes().find(|&at| self.files[at] == file)
    }

    pub fn import(&self, edge: Edge) -> &Import {
        &self.imports[&edge]
    }

    pub fn name(&self, (from, to): Edge) -> String {
        format!("{} -> {}", self.files[from], self.files[to])
    }

    /// The folder or file directly in `src` to which a file belongs.
    pub fn unit(&self, file: usize) -> &str {
        let path = &self.files[file];
        match path.split_once('/') {
            Some((folder, _)) => folder,
            None if self.has_folder(path) => path.trim_end_matches(".rs"),
            None => path,
        }
    }

    fn has_folder(&self, file: &str) -> bool {
        let folder = format!("{}/", file.trim_end_matches(".rs"));
        self.files.iter().any(|file| file.starts_with(&folder))
    }

    /// The folders whose files see a file as one of them: its own, and that around it where it is its folder's head.
    fn folders(&self, file: usize) -> Vec<String> {
        let path = self.files[file].trim_end_matches(".rs");
        let is_head = path.ends_with("/mod") || self.has_folder(path);
        let own = path.strip_suffix("/mod").unwrap_or(path);
        let around = own.rsplit_once('/').map(|(folder, _)| folder.to_owned());
        is_head.then(|| own.to_owned()).into_iter().chain(around).collect()
    }

    /// Whether two files lie in one folder, so that they may be in a circle.
    pub fn is_within_a_folder(&self, (from, to): Edge) -> bool {
        let folders = self.folders(from);
        self.folders(to).iter().any(|folder| folders.contains(folder))
    }

    /// The shortest way from a file to another one that goes by none of the imports left out.
    pub fn way(&self, from: usize, to: usize, without: &BTreeSet<Edge>) -> Option<Vec<usize>> {
        let mut came_from = vec![None; self.files.len()];
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(here) = queue.pop_front() {
            if here == to {
                let mut way = vec![to];
                while way[way.len() - 1] != from {
                    way.push(came_from[way[way.len() - 1]]?);
                }
                way.reverse();
                return Some(way);
            }
            for &(_, next) in self.imports.range((here, 0)..(here + 1, 0)).map(|(edge, _)| edge) {
                if next != from && came_from[next].is_none() && !without.contains(&(here, next)) {
                    came_from[next] = Some(here);
                    queue.push_back(next);
                }
            }
        }
        None
    }

    /// Imports that are part of a circle and leave a folder.
    pub fn in_circles(&self, without: &BTreeSet<Edge>) -> Vec<Edge> {
        let edges = self.imports.keys().copied().filter(|edge| !without.contains(edge));
        edges.filter(|&edge| !self.is_within_a_folder(edge) && self.way(edge.1, edge.0, without).is_some()).collect()
    }

    /// Sets of more than one file that all reach each other.
    pub fn circles(&self) -> Vec<Vec<usize>> {
        let mut circles: Vec<Vec<usize>> = Vec::new();
        for file in self.nodes() {
            if circles.iter().any(|circle| circle.contains(&file)) {
                continue;
            }
            let none = BTreeSet::new();
            let is_beside =
                |&other: &usize| self.way(file, other, &none).is_some() && self.way(other, file, &none).is_some();
            let circle: Vec<usize> = self.nodes().filter(is_beside).collect();
            if circle.len() > 1 {
                circles.push(circle);
            }
        }
        circles
    }
}
