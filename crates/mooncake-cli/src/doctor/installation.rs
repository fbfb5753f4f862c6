//! What is installed beside this binary, what a shell would start in its place, and the variables that stores read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mooncake_client::StoreOptions;
use mooncake_settings::environment::{Reader, remarks};

use super::answer::Answer;
use super::finding::{Area, Finding, Findings};
use super::wheel::{VERSION, install};
use crate::clash;

/// Commands of the wheel that scripts call.
const COMMANDS: [&str; 3] = ["mooncake", "mooncake_master", "mooncake_client"];

/// What a wheel of ours leaves beside its packages.
const PACKAGE: &str = "mooncake_rs-";

/// What was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Installation {
    /// This binary.
    pub binary: PathBuf,
    /// Another distribution beside it, as the programs say it at their start.
    pub clash: Option<String>,
    /// What a shell would start by each name, with all links followed.
    pub on_path: Vec<(&'static str, Option<PathBuf>)>,
    /// Versions of our wheel in the environment of this binary.
    pub packages: Vec<String>,
    /// Why a store of this environment would not be set up.
    pub bad_variable: Option<String>,
    /// Variables that have no effect, or are not known.
    pub remarks: Vec<String>,
}

impl Installation {
    /// Begins to read it: a folder of `PATH` may lie on a disk that does not answer.
    pub fn begin() -> Answer<Installation> {
        Answer::of(Installation::read)
    }

    fn read() -> Installation {
        let binary = std::env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        Installation {
            clash: clash::look().err().map(|clash| clash.to_string()),
            on_path: COMMANDS.iter().map(|name| (*name, first_of(&folders, name))).collect(),
            packages: binary.parent().and_then(Path::parent).map_or(Vec::new(), packages),
            bad_variable: StoreOptions::new("", "").from_env().err().map(|error| error.to_string()),
            remarks: remarks(Reader::Store, names),
            binary,
        }
    }
}

/// What a shell would start.
fn first_of(folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    folders.iter().map(|folder| folder.join(name)).find(is_program)?.canonicalize().ok()
}

/// Versions of our wheel below the prefix of an environment.
fn packages(prefix: &Path) -> Vec<String> {
    let listed = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).map_or(Vec::new(), |entries| entries.flatten().map(|entry| entry.path()).collect())
    };
    let pythons = ["lib", "lib64"].iter().flat_map(|lib| listed(&prefix.join(lib)));
    let folders = pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|packages| python.join(packages)));
    let versions = folders.flat_map(|folder| listed(&folder)).filter_map(|path| {
        let name = path.file_name()?.to_str()?;
        Some(name.strip_prefix(PACKAGE)?.strip_suffix(".dist-info")?.to_owned())
    });
    let mut versions: Vec<String> = versions.collect();
    versions.sort();
    // A lib64 that is a link to lib has the same ones.
    versions.dedup();
    versions
}

/// Judges it.
pub fn judge(read: Option<&Installation>) -> Vec<Finding> {
    let mut found = Findings::of(Area::Installation);
    let Some(read) = read else {
        found.skip("path", "what is installed was not read in time: the disk of a folder of PATH does not answer");
        return found.sorted();
    };
    match &read.clash {
        Some(clash) => {
            // What is wrong, the command that mends it, and the variable that starts all the same.
            let mut lines = clash.lines().map(str::trim);
            let message = lines.next().unwrap_or_default();
            let command = lines.next().unwrap_or_default();
            let uninstall = command.split_once(" && ").map_or(command, |(uninstall, _)| uninstall);
            found.error("clash", message, format!("{uninstall} && {}", install(VERSION)));
        }
        None => found.ok("clash", "no other distribution of Mooncake is in this binary's environment"),
    }
    match &read.packages[..] {
        [] => found.skip("package", format!("{VERSION} in {} is in no Python environment", read.binary.display())),
        [one] if one == VERSION => found.ok("package", format!("the Python package beside this binary is {one} too")),
        several => found.warn(
            "package",
            format!("this binary is {VERSION}, and the Python packages beside it are {}", several.join(", ")),
            install(VERSION),
        ),
    }
    path(read, &mut found);
    match &read.bad_variable {
        Some(why) => found.error(
            "variables",
            format!("no store of this environment can be set up: {why}"),
            "give that variable a value that it takes (docs/settings.md), or unset it",
        ),
        None => found.ok("variables", "stores understand the variables of this environment"),
    }
    for remark in &read.remarks {
        match remark.starts_with("not known here") {
            true => found.warn(
                "unknown_variables",
                format!("variables {remark}"),
                "unset them, or mend their names (docs/settings.md)",
            ),
            false => found.ok("idle_variables", remark),
        }
    }
    found.sorted()
}

fn path(read: &Installation, found: &mut Findings) {
    let own = read.binary.parent();
    let mut strangers = Vec::new();
    for (name, at) in &read.on_path {
        let Some(at) = at else { continue };
        // Of a version manager's shim it is not known what it starts.
        let is_shim = at.components().any(|part| part.as_os_str() == "shims");
        let is_own = if *name == "mooncake" { *at == read.binary } else { at.parent() == own };
        if !is_own && !is_shim {
            strangers.push(format!("{name} is {}", at.display()));
        }
    }
    let folder = own.map_or(String::new(), |own| own.display().to_string());
    match (strangers.is_empty(), read.on_path.iter().any(|(_, at)| at.is_some())) {
        (false, _) => found.warn(
            "path",
            format!("this binary is {}, but by PATH {}", read.binary.display(), strangers.join(", ")),
            format!("export PATH={folder}:$PATH, or pip uninstall the other one"),
        ),
        (true, true) => found.ok("path", format!("PATH leads to this binary, {}", read.binary.display())),
        (true, false) => found.hint(
            "path",
            format!("this binary is {}, and PATH leads to none", read.binary.display()),
            format!("export PATH={folder}:$PATH"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{Severity, told};

    fn well() -> Installation {
        let at = |name: &str| Some(PathBuf::from("/env/bin").join(name));
        Installation {
            binary: "/env/bin/mooncake".into(),
            on_path: COMMANDS.iter().map(|name| (*name, at(name))).collect(),
            packages: vec![VERSION.to_owned()],
            ..Installation::default()
        }
    }

    #[test]
    fn one_wheel_of_one_version_is_well() {
        let found = judge(Some(&well()));
        assert!(found.iter().all(|finding| finding.severity == Severity::Ok), "{found:#?}");
    }

    #[test]
    fn a_disk_that_does_not_answer_is_no_fault_of_the_installation() {
        told::is(&judge(None), "path", Severity::Skipped, &["does not answer"]);
    }

    #[test]
    fn another_distribution_is_an_error_with_the_command_that_mends_it() {
        let clash =
            "a and b are both installed:\n    pip uninstall -y a b && pip install b\n(X=1 starts all the same.)";
        let found = judge(Some(&Installation { clash: Some(clash.to_owned()), ..well() }));
        told::is(&found, "clash", Severity::Error, &["both installed"]);
        assert_eq!(
            told::of(&found, "clash").remedy.as_deref(),
            Some(&*format!("pip uninstall -y a b && {}", install(VERSION)))
        );
    }

    #[test]
    fn commands_of_another_environment_are_named() {
        let mut read = well();
        read.on_path[1].1 = Some("/usr/local/bin/mooncake_master".into());
        let says = ["mooncake_master is /usr/local/bin/mooncake_master", "export PATH=/env/bin:$PATH"];
        told::is(&judge(Some(&read)), "path", Severity::Warning, &says);
        read.on_path[1].1 = Some("/root/.pyenv/shims/mooncake_master".into());
        told::is(&judge(Some(&read)), "path", Severity::Ok, &["/env/bin/mooncake"]);
        read.on_path.iter_mut().for_each(|(_, at)| *at = None);
        told::is(&judge(Some(&read)), "path", Severity::Ok, &["leads to none", "export PATH"]);
    }

    #[test]
    fn packages_of_another_version_are_named() {
        let with = |packages: &[&str]| {
            judge(Some(&Installation { packages: packages.iter().map(|it| (*it).to_owned()).collect(), ..well() }))
        };
        told::is(&with(&["9.9.9"]), "package", Severity::Warning, &["9.9.9", &install(VERSION)]);
        told::is(&with(&[VERSION, "9.9.9"]), "package", Severity::Warning, &["9.9.9"]);
        told::is(&with(&[]), "package", Severity::Skipped, &["no Python environment"]);
    }

    #[test]
    fn variables_that_stop_a_store_are_an_error_and_unknown_ones_a_warning() {
        // The registry has every whole name that stands in a program.
        let misspelt = ["MC", "SHMM"].join("_");
        let (bad, unknown) = ("MC_SHM=maybe", format!("not known here, without effect: {misspelt}"));
        let remarks = vec![unknown, "MC_IB_TC has no effect: there is no RDMA".to_owned()];
        let found = judge(Some(&Installation { bad_variable: Some(bad.to_owned()), remarks, ..well() }));
        told::is(&found, "variables", Severity::Error, &["MC_SHM=maybe", "unset"]);
        told::is(&found, "unknown_variables", Severity::Warning, &[&misspelt]);
        told::is(&found, "idle_variables", Severity::Ok, &["no RDMA"]);
    }

    #[test]
    fn programs_and_packages_are_found_where_they_are() {
        let scratch = tempfile::tempdir().unwrap();
        let (bin, other) = (scratch.path().join("bin"), scratch.path().join("other"));
        for folder in [&bin, &other, &scratch.path().join("lib/python3.11/site-packages/mooncake_rs-0.3.0.dist-info")] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(other.join("mooncake"), "").unwrap();
        assert_eq!(first_of(&[other.clone(), bin.clone()], "mooncake"), None, "it cannot be started");
        fs::set_permissions(other.join("mooncake"), fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(other.join("mooncake"), bin.join("mooncake")).unwrap();
        let found = first_of(&[scratch.path().join("none"), bin, other.clone()], "mooncake");
        assert_eq!(found, Some(other.canonicalize().unwrap().join("mooncake")));
        assert_eq!(packages(scratch.path()), ["0.3.0"]);
    }
}
