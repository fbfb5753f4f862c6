//! The workspace's crates, as their manifests describe them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// A crate of the workspace.
#[derive(Debug)]
pub struct Manifest {
    pub name: String,
    /// Its folder from the repository's root, with slashes.
    pub folder: String,
    /// Names of what it is linked with, each with its line in the manifest. Not what only fuzzers have.
    pub normal: BTreeMap<String, usize>,
    /// Names of everything that its sources and tests may name.
    pub all: Vec<String>,
}

#[derive(Deserialize)]
struct Workspace {
    workspace: Members,
}

#[derive(Deserialize)]
struct Members {
    members: Vec<String>,
}

type Dependencies = BTreeMap<String, IgnoredAny>;

#[derive(Deserialize)]
struct Package {
    package: Name,
    #[serde(default)]
    dependencies: Dependencies,
    #[serde(default, rename = "dev-dependencies")]
    dev_dependencies: Dependencies,
    #[serde(default)]
    target: BTreeMap<String, Target>,
}

#[derive(Deserialize)]
struct Name {
    name: String,
}

#[derive(Deserialize)]
struct Target {
    #[serde(default)]
    dependencies: Dependencies,
    #[serde(default, rename = "dev-dependencies")]
    dev_dependencies: Dependencies,
}

const FUZZING: &str = "cfg(fuzzing)";

/// All crates of the workspace, by name.
pub fn workspace(root: &Path) -> Result<Vec<Manifest>, String> {
    let workspace: Workspace = parse(&root.join("Cargo.toml"))?;
    let mut crates = Vec::new();
    for member in workspace.workspace.members {
        let Some(parent) = member.strip_suffix("/*") else {
            crates.push(read(root, &member)?);
            continue;
        };
        let folder = root.join(parent);
        let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in entries.flatten().filter(|entry| entry.path().join("Cargo.toml").exists()) {
            crates.push(read(root, &format!("{parent}/{}", entry.file_name().to_string_lossy()))?);
        }
    }
    crates.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(crates)
}

fn read(root: &Path, folder: &str) -> Result<Manifest, String> {
    let path = root.join(folder).join("Cargo.toml");
    let package: Package = parse(&path)?;
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut normal: Vec<String> = package.dependencies.into_keys().collect();
    let mut all: Vec<String> = package.dev_dependencies.into_keys().collect();
    for (condition, target) in package.target {
        let linked = if condition == FUZZING { &mut all } else { &mut normal };
        linked.extend(target.dependencies.into_keys());
        all.extend(target.dev_dependencies.into_keys());
    }
    all.extend(normal.iter().cloned());
    let line_of = |name: &str| 1 + text.lines().position(|line| line.starts_with(name)).unwrap_or(0);
    let normal = normal.into_iter().map(|name| (name.clone(), line_of(&name))).collect();
    Ok(Manifest { name: package.package.name, folder: folder.to_owned(), normal, all })
}

fn parse<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    basic_toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}
