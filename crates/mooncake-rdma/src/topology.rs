//! Which network devices are near which memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

const FILE_VARIABLE: &str = "MC_CUSTOM_TOPO_JSON";
const FILTERS_VARIABLE: &str = "MC_TE_FILTERS";

/// What network devices are preferred for, and which others can serve, memory of each kind: `cpu:0`, `cuda:1`.
///
/// As JSON it is Mooncake's matrix: `{"cpu:0": [["mlx5_0"], ["mlx5_1"]]}`. The order of the lists is kept, and so is
/// that of
/// [`Topology::devices`]: by a device's place there both ends count the keys that they have for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Topology {
    matrix: BTreeMap<String, (Vec<String>, Vec<String>)>,
}

/// A network device that can be used.
struct Device {
    name: String,
    node: Option<u32>,
    path: PathBuf,
}

impl Topology {
    /// As the environment wants it: the matrix of the file that `MC_CUSTOM_TOPO_JSON` names; or what is discovered of
    /// those devices that are in `devices` and in `MC_TE_FILTERS`, as far as these name any, with commas between them.
    /// A file that is no matrix is logged, and devices are discovered.
    pub fn from_env(devices: &str, var: impl Fn(&str) -> Option<String>) -> Topology {
        let variable = |name: &str| var(name).filter(|value| !value.is_empty());
        if let Some(path) = variable(FILE_VARIABLE) {
            let read = fs::read_to_string(&path).map_err(|error| error.to_string());
            match read.and_then(|json| Topology::parse(&json).map_err(|error| error.to_string())) {
                Ok(custom) => return custom,
                Err(error) => tracing::warn!(path, error, "{FILE_VARIABLE} names no matrix; devices are discovered"),
            }
        }
        let names = |list: &str| -> Vec<String> {
            list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        let named = names(devices);
        let filters = variable(FILTERS_VARIABLE).map(|filters| names(&filters));
        let wanted = match &filters {
            Some(filters) if named.is_empty() => filters.clone(),
            Some(filters) => named.into_iter().filter(|name| filters.contains(name)).collect(),
            None => named,
        };
        // Filters that leave nothing over are no empty list of filters.
        let none_left = wanted.is_empty() && (!devices.trim().is_empty() || filters.is_some());
        Topology::discover(&if none_left { vec![String::new()] } else { wanted })
    }

    /// Reads the system's own description. `only`: the names of devices to be used, all if there are none. What cannot
    /// be read is as if it were not there.
    pub fn discover(only: &[String]) -> Topology {
        Topology::discover_below(Path::new("/"), only)
    }

    /// Of these devices, each with the folder where the kernel tells of it.
    pub fn of_devices(devices: impl IntoIterator<Item = (String, PathBuf)>) -> Topology {
        let device = |(name, folder): (String, PathBuf)| {
            let path = fs::canonicalize(folder.join("device")).unwrap_or_default();
            Device { node: node_of(&path), name, path }
        };
        Topology::near(Path::new("/"), &devices.into_iter().map(device).collect::<Vec<_>>())
    }

    fn discover_below(root: &Path, only: &[String]) -> Topology {
        Topology::near(root, &devices(root, only))
    }

    fn near(root: &Path, devices: &[Device]) -> Topology {
        let mut matrix = BTreeMap::new();
        for node in numbers(&root.join("sys/devices/system/node"), "node") {
            let (near, far): (Vec<_>, Vec<_>) = devices.iter().partition(|device| device.node == Some(node));
            let names = |list: Vec<&Device>| list.into_iter().map(|device| device.name.clone()).collect();
            matrix.insert(format!("cpu:{node}"), (names(near), names(far)));
        }
        for (index, gpu) in gpus(root).into_iter().enumerate() {
            let node = node_of(&gpu);
            let same_node: Vec<&Device> = devices.iter().filter(|device| device.node == node).collect();
            let candidates = if same_node.is_empty() { devices.iter().collect() } else { same_node };
            let nearest = candidates.iter().map(|device| distance(&gpu, &device.path)).min();
            let is_near = |device: &Device| {
                candidates.iter().any(|one| one.name == device.name) && Some(distance(&gpu, &device.path)) == nearest
            };
            let (near, far): (Vec<_>, Vec<_>) = devices.iter().partition(|device| is_near(device));
            let names = |list: Vec<&Device>| list.into_iter().map(|device| device.name.clone()).collect();
            matrix.insert(format!("cuda:{index}"), (names(near), names(far)));
        }
        Topology { matrix }
    }

    /// Reads a matrix.
    pub fn parse(json: &str) -> Result<Topology, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// The matrix, indented.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings are JSON")
    }

    /// Without the devices that are not among these.
    pub fn only(&self, devices: &[&str]) -> Topology {
        let left = |names: &[String]| -> Vec<String> {
            names.iter().filter(|name| devices.contains(&name.as_str())).cloned().collect()
        };
        let matrix = self.matrix.iter().map(|(kind, (near, far))| (kind.clone(), (left(near), left(far))));
        Topology { matrix: matrix.collect() }
    }

    /// The devices that memory of a kind prefers, then the others.
    pub fn near_and_far(&self, location: &str) -> (Vec<&str>, Vec<&str>) {
        match self.matrix.get(location) {
            Some((near, far)) => (near.iter().map(String::as_str).collect(), far.iter().map(String::as_str).collect()),
            None => (self.devices(), Vec::new()),
        }
    }

    /// All devices, each where the matrix first names it, by ascending kind of memory. Memory of a kind that the matrix
    /// has not, Mooncake's `*`, is as near to all of them.
    pub fn devices(&self) -> Vec<&str> {
        let mut all = Vec::new();
        for device in self.matrix.values().flat_map(|(near, far)| near.iter().chain(far)) {
            if !all.contains(&device.as_str()) {
                all.push(device);
            }
        }
        all
    }
}

/// Devices that are active and may be opened, in the order of their names.
fn devices(root: &Path, only: &[String]) -> Vec<Device> {
    let class = root.join("sys/class/infiniband");
    let mut found: Vec<Device> = entries(&class)
        .into_iter()
        .filter(|name| only.is_empty() || only.contains(name))
        .filter(|name| is_active(&class.join(name)) && may_be_opened(root, name))
        .map(|name| {
            let path = fs::canonicalize(class.join(&name).join("device")).unwrap_or_default();
            Device { node: node_of(&path), name, path }
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn is_active(device: &Path) -> bool {
    entries(&device.join("ports")).iter().any(|port| {
        let state = fs::read_to_string(device.join("ports").join(port).join("state"));
        let gids = device.join("ports").join(port).join("gids");
        state.is_ok_and(|state| state.contains("ACTIVE")) && !entries(&gids).is_empty()
    })
}

/// The file that `libibverbs` opens is there for this process. The kernel names it below the class of such files: a
/// device that is software alone has no folder of hardware where it would stand, too.
fn may_be_opened(root: &Path, device: &str) -> bool {
    let class = root.join("sys/class/infiniband_verbs");
    entries(&class).iter().any(|verbs| {
        let is_of_device = fs::read_to_string(class.join(verbs).join("ibdev")).is_ok_and(|name| name.trim() == device);
        let path = root.join("dev/infiniband").join(verbs);
        is_of_device && fs::OpenOptions::new().read(true).write(true).open(path).is_ok()
    })
}

/// NVIDIA's, in the order of the bus, as the driver counts them by default on machines with one kind.
fn gpus(root: &Path) -> Vec<PathBuf> {
    let bus = root.join("sys/bus/pci/devices");
    let mut found: Vec<String> = entries(&bus);
    found.sort();
    let is_gpu = |address: &String| {
        let read = |what| fs::read_to_string(bus.join(address).join(what)).unwrap_or_default();
        // Display controllers: VGA-compatible and 3D.
        read("vendor").trim() == "0x10de" && ["0x0300", "0x0302"].iter().any(|class| read("class").starts_with(class))
    };
    found.iter().filter(|address| is_gpu(address)).filter_map(|one| fs::canonicalize(bus.join(one)).ok()).collect()
}

/// The NUMA node that a device of the bus belongs to.
fn node_of(path: &Path) -> Option<u32> {
    let text = fs::read_to_string(path.join("numa_node")).ok()?;
    match text.trim().parse::<i64>().ok()? {
        // Not told: machines with one node say so.
        node if node < 0 => Some(0),
        node => u32::try_from(node).ok(),
    }
}

/// Steps from one to the other along the bus.
fn distance(one: &Path, other: &Path) -> usize {
    let (one, other): (Vec<Component<'_>>, Vec<Component<'_>>) =
        (one.components().collect(), other.components().collect());
    let same = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    one.len() + other.len() - 2 * same
}

fn entries(folder: &Path) -> Vec<String> {
    let Ok(read) = fs::read_dir(folder) else { return Vec::new() };
    read.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The numbers after a prefix in the names of a folder, ascending.
fn numbers(folder: &Path, prefix: &str) -> Vec<u32> {
    let mut found: Vec<u32> =
        entries(folder).iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A machine of two nodes, each with a network device and a GPU behind the same switch as it.
    fn machine() -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for node in 0..2 {
            write(&format!("sys/devices/system/node/node{node}/meminfo"), "");
            for (device, class) in [("01", "0x020700"), ("02", "0x030200")] {
                let path = format!("sys/devices/pci{node}/switch/0000:{node}{device}:00.0");
                write(&format!("{path}/numa_node"), &format!("{node}\n"));
                write(&format!("{path}/vendor"), if device == "02" { "0x10de\n" } else { "0x15b3\n" });
                write(&format!("{path}/class"), class);
                fs::create_dir_all(root.join("sys/bus/pci/devices")).unwrap();
                let link = root.join(format!("sys/bus/pci/devices/0000:{node}{device}:00.0"));
                std::os::unix::fs::symlink(root.join(&path), link).unwrap();
            }
            let ib = format!("sys/class/infiniband/mlx5_{node}");
            write(&format!("{ib}/ports/1/state"), if node == 0 { "4: ACTIVE\n" } else { "4: ACTIVE" });
            write(&format!("{ib}/ports/1/gids/0"), "fe80::1");
            let device = root.join(format!("sys/devices/pci{node}/switch/0000:{node}01:00.0"));
            write(&format!("sys/class/infiniband_verbs/uverbs{node}/ibdev"), &format!("mlx5_{node}\n"));
            std::os::unix::fs::symlink(&device, root.join(&ib).join("device")).unwrap();
            write(&format!("dev/infiniband/uverbs{node}"), "");
        }
        folder
    }

    #[test]
    fn memory_prefers_the_devices_near_it() {
        let folder = machine();
        let root = folder.path();
        let found = Topology::discover_below(root, &[]);
        let lists = |near: &str, far: &str| (vec![near.to_owned()], vec![far.to_owned()]);
        assert_eq!(found.matrix["cpu:0"], lists("mlx5_0", "mlx5_1"));
        assert_eq!(found.matrix["cpu:1"], lists("mlx5_1", "mlx5_0"));
        assert_eq!(found.matrix["cuda:0"], lists("mlx5_0", "mlx5_1"));
        assert_eq!(found.matrix["cuda:1"], lists("mlx5_1", "mlx5_0"));
        assert_eq!(Topology::parse(&found.to_json()).unwrap(), found);
        assert_eq!(found.devices(), ["mlx5_0", "mlx5_1"]);
        let one = Topology::discover_below(root, &["mlx5_1".into()]);
        assert_eq!(one.matrix["cpu:0"], (vec![], vec!["mlx5_1".to_owned()]));
        fs::write(root.join("sys/class/infiniband/mlx5_1/ports/1/state"), "1: DOWN").unwrap();
        assert_eq!(Topology::discover_below(root, &[]).devices(), ["mlx5_0"]);
    }

    #[test]
    fn a_device_that_is_software_alone_is_as_near_as_any() {
        let folder = machine();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n");
        write("sys/class/infiniband/rxe0/ports/1/gids/0", "fe80::1");
        write("sys/class/infiniband_verbs/uverbs7/ibdev", "rxe0\n");
        assert_eq!(Topology::discover_below(folder.path(), &[]).devices(), ["mlx5_0", "mlx5_1"], "it cannot be opened");
        write("dev/infiniband/uverbs7", "");
        assert_eq!(Topology::discover_below(folder.path(), &["rxe0".into()]).devices(), ["rxe0"]);
    }

    #[test]
    fn a_file_that_the_environment_names_is_taken_as_it_is_and_a_wrong_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("matrix.json");
        let named = |name: &str| (name == FILE_VARIABLE).then(|| file.to_str().unwrap().to_owned());
        let matrix = r#"{"cpu:0": [["mlx5_0"], ["mlx5_1"]]}"#;
        fs::write(&file, matrix).unwrap();
        assert_eq!(Topology::from_env("mlx5_1", named), Topology::parse(matrix).unwrap());
        fs::write(&file, "[]").unwrap();
        let discovered = Topology::discover(&[]);
        assert_eq!(Topology::from_env("", named), discovered);
        fs::remove_file(&file).unwrap();
        assert_eq!(Topology::from_env("", named), discovered);
        let filtered = |name: &str| (name == FILTERS_VARIABLE).then(|| "no such device, nor this".to_owned());
        assert!(Topology::from_env("", filtered).devices().is_empty());
    }

    #[test]
    fn devices_keep_the_order_that_the_matrix_gives_them() {
        let json = r#"{"cpu:0": [["mlx5_3", "mlx5_1"], ["mlx5_2"]], "cuda:0": [["mlx5_2"], ["mlx5_0", "mlx5_3"]]}"#;
        let read = Topology::parse(json).unwrap();
        assert_eq!(read.devices(), ["mlx5_3", "mlx5_1", "mlx5_2", "mlx5_0"]);
        assert_eq!(Topology::parse(&read.to_json()).unwrap(), read);
    }

    #[test]
    fn a_machine_without_devices_has_its_nodes_and_a_wrong_matrix_is_refused() {
        let here = Topology::discover(&["no such device".into()]);
        assert!(here.matrix.contains_key("cpu:0") && here.devices().is_empty(), "{here:?}");
        for wrong in ["[]", r#"{"cpu:0": [["a"]]}"#, r#"{"cpu:0": [["a"], ["b"], []]}"#, r#"{"cpu:0": [1, 2]}"#, "{"] {
            assert!(Topology::parse(wrong).is_err(), "{wrong}");
        }
    }
}
