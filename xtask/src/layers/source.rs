//! A crate's sources as a tree of modules: which file each lies in, what it defines, and which paths it names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::Visit;

use super::mentions::{Collector, Mention};

/// All modules below a crate's `src`.
#[derive(Debug, Default)]
pub struct Sources {
    /// Paths from `src`, with slashes.
    pub files: Vec<String>,
    /// Those that nobody of the crate stands above: `lib.rs`, `main.rs`, programs in `bin`.
    pub roots: BTreeSet<usize>,
    pub modules: Vec<Module>,
    /// What no `mod` line leads to.
    pub orphans: Vec<String>,
    /// Files of tests, from `src`.
    tests: BTreeSet<String>,
}

/// A module, of a file or of braces.
#[derive(Debug)]
pub struct Module {
    pub file: usize,
    pub parent: Option<usize>,
    /// Its names from the crate's root on.
    pub path: Vec<String>,
    pub is_test: bool,
    pub children: BTreeMap<String, usize>,
    /// Names of what it defines, macros included.
    pub items: BTreeSet<String>,
    pub mentions: Vec<Mention>,
}

impl Sources {
    /// Reads `src` below a crate's folder. Tests are read in `machine` folders only: nothing else is asked of them.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let src = folder.join("src");
        let mut sources = Self::default();
        let mut found = Vec::new();
        list(&src, "", &mut found)?;
        for root in found.iter().filter(|file| is_root(file)) {
            sources.file(&src, root, None, Vec::new(), false)?;
        }
        for file in found {
            let is_known = sources.files.contains(&file);
            if !is_known && !sources.tests.contains(&file) && !is_test_file(&file) && !sources.is_beside_tests(&file) {
                sources.orphans.push(file);
            }
        }
        Ok(sources)
    }

    fn file(
        &mut self,
        src: &Path,
        file: &str,
        parent: Option<usize>,
        path: Vec<String>,
        is_test: bool,
    ) -> Result<usize, String> {
        let place = src.join(file);
        let text = std::fs::read_to_string(&place).map_err(|error| format!("{}: {error}", place.display()))?;
        let parsed = syn::parse_file(&text)
            .map_err(|error| format!("{}:{}: {error}", place.display(), error.span().start().line))?;
        let number = self.files.len();
        self.files.push(file.to_owned());
        if parent.is_none() {
            self.roots.insert(number);
        }
        if is_test {
            self.tests.insert(file.to_owned());
        }
        let module = self.module(number, parent, path, is_test);
        self.fill(src, module, &parsed.items, is_test)?;
        Ok(module)
    }

    fn module(&mut self, file: usize, parent: Option<usize>, path: Vec<String>, is_test: bool) -> usize {
        let (children, items) = (BTreeMap::new(), BTreeSet::new());
        self.modules.push(Module { file, parent, path, is_test, children, items, mentions: Vec::new() });
        self.modules.len() - 1
    }

    fn fill(&mut self, src: &Path, module: usize, items: &[syn::Item], is_test: bool) -> Result<(), String> {
        let mut collector = Collector::new(is_test);
        for item in items {
            collector.visit_item(item);
        }
        let Collector { items, mentions, modules, .. } = collector;
        self.modules[module].items = items;
        self.modules[module].mentions = mentions;
        for (inner, is_test) in modules {
            let name = inner.ident.to_string();
            let path: Vec<String> = self.modules[module].path.iter().cloned().chain([name.clone()]).collect();
            let child = match &inner.content {
                Some((_, items)) => {
                    let child = self.module(self.modules[module].file, Some(module), path, is_test);
                    self.fill(src, child, items, is_test)?;
                    child
                }
                None => {
                    let file = self.file_of(src, module, &name)?;
                    if is_test && !is_of_machine(&file) {
                        self.tests.insert(file);
                        continue;
                    }
                    self.file(src, &file, Some(module), path, is_test)?
                }
            };
            if !is_test || self.modules[module].is_test {
                self.modules[module].children.insert(name, child);
            }
        }
        Ok(())
    }

    /// Where `mod name;` of a module leads.
    fn file_of(&self, src: &Path, module: usize, name: &str) -> Result<String, String> {
        // Modules in braces are folders of their file.
        let mut braces = Vec::new();
        let mut outer = module;
        while let Some(parent) =
            self.modules[outer].parent.filter(|&p| self.modules[p].file == self.modules[outer].file)
        {
            braces.insert(0, self.modules[outer].path.last().cloned().unwrap_or_default());
            outer = parent;
        }
        let file = &self.files[self.modules[module].file];
        let mut folder = if is_root(file) || file.ends_with("/mod.rs") || file == "mod.rs" {
            PathBuf::from(file).parent().map(Path::to_owned).unwrap_or_default()
        } else {
            PathBuf::from(file.trim_end_matches(".rs"))
        };
        folder.extend(braces);
        let candidates = [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")];
        let found = candidates.iter().find(|candidate| src.join(candidate).exists());
        found
            .map(|found| found.to_string_lossy().into_owned())
            .ok_or_else(|| format!("{}: `mod {name};` leads to no file", src.join(file).display()))
    }

    fn is_beside_tests(&self, file: &str) -> bool {
        self.tests
            .iter()
            .any(|test| file.strip_prefix(test.trim_end_matches(".rs")).is_some_and(|r| r.starts_with('/')))
    }

    /// Whether a file counts: it is no file of tests.
    pub fn counts(&self, file: usize) -> bool {
        !self.tests.contains(&self.files[file])
    }

    pub fn root_of(&self, mut module: usize) -> usize {
        while let Some(parent) = self.modules[module].parent {
            module = parent;
        }
        module
    }
}

/// Whether a file lies in a `machine` folder, or is its head.
pub fn is_of_machine(file: &str) -> bool {
    file.split('/').any(|part| part == "machine" || part == "machine.rs")
}

fn is_root(file: &str) -> bool {
    matches!(file, "lib.rs" | "main.rs") || file.starts_with("bin/") && file.matches('/').count() == 1
}

fn is_test_file(file: &str) -> bool {
    file.split('/').any(|part| part == "tests" || part == "tests.rs")
}

fn list(src: &Path, below: &str, files: &mut Vec<String>) -> Result<(), String> {
    let folder = src.join(below);
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut names: Vec<_> = entries.flatten().map(|entry| (entry.file_name(), entry.path())).collect();
    names.sort();
    for (name, path) in names {
        let name = name.to_string_lossy();
        let inner = if below.is_empty() { name.into_owned() } else { format!("{below}/{name}") };
        if path.is_dir() {
            list(src, &inner, files)?;
        } else if inner.ends_with(".rs") {
            files.push(inner);
        }
    }
    Ok(())
}
