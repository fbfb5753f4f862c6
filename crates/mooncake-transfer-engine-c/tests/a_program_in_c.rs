//! The header compiles in C and C++, and a program with it moves bytes between two processes.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Asked for when it runs: a checkout that was moved keeps what cargo built in it.
fn crate_folder() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the crate is").into()
}

/// The library that belongs to this test, beside it.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    [deps, deps.parent().unwrap()]
        .iter()
        .map(|folder| folder.join("libtransfer_engine.so"))
        .find(|path| path.exists())
        .expect("cargo has built the library")
}

fn compile(compiler: &str, arguments: &[&str]) {
    let made = Command::new(compiler).args(["-Wall", "-Wextra", "-Werror"]).args(arguments).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn a_program_in_c_lends_writes_reads_and_leaves_a_message() {
    let root = crate_folder();
    let folder = tempfile::tempdir().unwrap();
    let (include, source) = (root.join("include"), root.join("examples/transfer.c"));
    let (program, library) = (folder.path().join("transfer"), library());
    let include = include.to_str().unwrap();
    let arguments =
        ["-I", include, source.to_str().unwrap(), library.to_str().unwrap(), "-o", program.to_str().unwrap()];
    compile("cc", &arguments);
    let header = folder.path().join("header.cc");
    std::fs::write(
        &header,
        "#include \"transfer_engine_c.h\"\nint main() { return sizeof(transfer_request_t) == 40 ? 0 : 1; }\n",
    )
    .unwrap();
    compile("c++", &["-I", include, header.to_str().unwrap(), "-o", folder.path().join("header").to_str().unwrap()]);
    assert!(Command::new(folder.path().join("header")).status().unwrap().success(), "the layout of a request");

    let mut target = Command::new(&program).arg("target").stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(target.stdout.take().unwrap()).lines();
    let first = said.next().unwrap().unwrap();
    let (name, address) = first.split_once(' ').unwrap();
    let initiator = Command::new(&program).args(["initiator", name, address]).output().unwrap();
    assert!(initiator.status.success(), "{}", String::from_utf8_lossy(&initiator.stderr));
    assert_eq!(initiator.stdout, b"both ways\n");
    let last = (1 << 20) - 1_usize;
    assert_eq!(said.next().unwrap().unwrap(), format!("all of it {}", (last * 7 + (last >> 8)) as u8));
    assert!(target.wait().unwrap().success());
}

#[test]
fn sources_that_use_each_name_as_mooncakes_header_has_it_compile_and_run_in_c_and_in_cpp() {
    let root = crate_folder();
    let folder = tempfile::tempdir().unwrap();
    let (include, source, library) = (root.join("include"), root.join("tests/sources/every_name.c"), library());
    let program = folder.path().join("every_name");
    let standards = [("cc", "c", "c99"), ("cc", "c", "c17"), ("c++", "c++", "c++11"), ("c++", "c++", "c++17")];
    for (compiler, language, standard) in standards {
        let standard = format!("-std={standard}");
        let [include, source, library, program] =
            [&include, &source, &library, &program].map(|path| path.to_str().unwrap());
        let how = ["-pedantic", "-I", include, "-x", language, &standard, source];
        compile(compiler, &[&how[..], &["-x", "none", library, "-o", program]].concat());
        let ended = Command::new(program).output().unwrap();
        assert_eq!(ended.status.code(), Some(0), "{standard}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}

#[test]
fn memory_that_is_not_remote_accessible_is_a_source_and_refused_to_peers() {
    let root = crate_folder();
    let folder = tempfile::tempdir().unwrap();
    let (include, source, library) = (root.join("include"), root.join("tests/sources/local_memory.c"), library());
    let program = folder.path().join("local_memory");
    let paths = [&include, &source, &library, &program].map(|path| path.to_str().unwrap());
    compile("cc", &["-I", paths[0], paths[1], paths[2], "-o", paths[3]]);
    let ended = Command::new(&program).output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// What a call answers that must not panic, though no panic would leave it.
fn no_panic<T>(call: impl FnOnce() -> T) -> T {
    thread_local!(static PANICS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });
    let former = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.set(PANICS.get() + 1);
        former(panic);
    }));
    let answer = call();
    assert_eq!(PANICS.get(), 0);
    answer
}

#[test]
fn what_can_be_seen_to_be_wrong_is_a_code_and_no_crash() {
    use transfer_engine as c;
    let none = std::ptr::null_mut();
    // SAFETY: null is what these calls look for.
    unsafe {
        assert!(c::createTransferEngine(std::ptr::null(), std::ptr::null(), std::ptr::null(), 0, 0).is_null());
        assert!(c::createTransferEngine(c"etcd://x".as_ptr(), c"a".as_ptr(), std::ptr::null(), 0, 0).is_null());
        assert_eq!(c::openSegment(none, c"x".as_ptr()), -1);
        assert_eq!(c::allocateBatchID(none, 1), u64::MAX);
        assert_eq!(c::freeBatchID(none, 1), 1);
        assert_eq!(c::registerLocalMemory(none, none, 1, c"*".as_ptr(), 1), -1);
        assert!(c::getNotifsFromEngine(none, std::ptr::null_mut()).is_null());
        c::freeNotifsMsgBuf(std::ptr::null_mut(), 5);
        c::destroyTransferEngine(none);
        let engine = c::createTransferEngine(c"P2PHANDSHAKE".as_ptr(), c"127.0.0.1".as_ptr(), std::ptr::null(), 0, 0);
        assert!(!engine.is_null());
        assert_eq!(c::submitTransfer(engine, 77, std::ptr::null_mut(), 0), 1, "no such batch");
        let batch = c::allocateBatchID(engine, 1);
        assert_eq!(c::submitTransfer(engine, batch, std::ptr::null_mut(), 1), 1);
        assert_eq!(c::getTransferStatus(engine, batch, 0, std::ptr::null_mut()), 1);
        let mut memory = [0_u8; 64];
        let mut entry: c::TransferRequest = std::mem::zeroed();
        assert_eq!(no_panic(|| c::submitTransfer(engine, batch, &raw mut entry, 1 << 61)), 1);
        for len in [1 << 62, usize::MAX] {
            let register = || c::registerLocalMemory(engine, memory.as_mut_ptr().cast(), len, c"*".as_ptr(), 1);
            assert_eq!(no_panic(register), -1, "{len} bytes are no memory");
        }
        assert_eq!(c::freeBatchID(engine, batch), 0);
        assert_eq!(c::getLocalIpAndPort(engine, std::ptr::null_mut(), 0), -1);
        assert!(c::installTransport(engine, c"nvlink".as_ptr(), std::ptr::null_mut()).is_null());
        let mut wrong = [c"{\"cpu:0\": [1]}".as_ptr().cast_mut().cast(), none];
        assert!(c::installTransport(engine, c"tcp".as_ptr(), wrong.as_mut_ptr()).is_null());
        c::destroyTransferEngine(engine);
    }
}

#[test]
fn the_matrix_that_a_transport_is_installed_with_is_the_engines() {
    use transfer_engine as c;
    let matrix = r#"{"cpu:0":[["mlx5_7"],["mlx5_8"]]}"#;
    let text = std::ffi::CString::new(matrix).unwrap();
    let mut args = [text.as_ptr().cast_mut().cast(), std::ptr::null_mut()];
    let mut none = [std::ptr::null_mut(), std::ptr::null_mut()];
    let mut shown = [0_u8; 4096];
    // SAFETY: C strings, a list that ends in null, and a buffer of that length.
    unsafe {
        let engine = c::createTransferEngine(c"P2PHANDSHAKE".as_ptr(), c"127.0.0.1".as_ptr(), std::ptr::null(), 0, 0);
        assert!(!c::installTransport(engine, c"tcp".as_ptr(), args.as_mut_ptr()).is_null());
        assert!(!c::installTransport(engine, c"rdma".as_ptr(), none.as_mut_ptr()).is_null(), "no matrix is no change");
        assert_eq!(c::showLinks(engine, shown.as_mut_ptr().cast(), shown.len(), 1), 0);
        c::destroyTransferEngine(engine);
    }
    let shown = std::ffi::CStr::from_bytes_until_nul(&shown).unwrap().to_str().unwrap();
    assert!(shown.contains(matrix), "{shown}");
}

/// Keeps documents by key, as Mooncake's metadata services do.
fn metadata_service() -> (String, std::sync::Arc<std::sync::Mutex<Vec<String>>>) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/metadata", listener.local_addr().unwrap());
    let put = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let all = put.clone();
    std::thread::spawn(move || {
        let mut documents = std::collections::HashMap::<String, String>::new();
        for stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(&stream);
            let (mut first, mut length) = (String::new(), 0);
            lines.read_line(&mut first).unwrap();
            loop {
                let mut line = String::new();
                lines.read_line(&mut line).unwrap();
                if let Some((name, value)) = line.split_once(':')
                    && name.eq_ignore_ascii_case("content-length")
                {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            lines.read_exact(&mut body).unwrap();
            let body = String::from_utf8(body).unwrap();
            let mut words = first.split(' ');
            let (method, key) = (words.next().unwrap(), words.next().unwrap().to_owned());
            let found = match method {
                "PUT" => {
                    all.lock().unwrap().push(body.clone());
                    documents.insert(key, body);
                    Some(String::new())
                }
                "DELETE" => documents.remove(&key).map(|_| String::new()),
                _ => documents.get(&key).cloned(),
            };
            let status = if found.is_some() { "200 OK" } else { "404 Not Found" };
            let body = found.unwrap_or_default();
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
            (&stream).write_all(answer.as_bytes()).unwrap();
        }
    });
    (url, put)
}

#[test]
fn what_peers_are_told_to_reach_a_host_by_may_be_its_name() {
    use transfer_engine as c;
    let (url, put) = metadata_service();
    let url = std::ffi::CString::new(url).unwrap();
    let mut at = [0_u8; 100];
    // SAFETY: C strings, and a buffer of that length.
    unsafe {
        let engine = c::createTransferEngine(url.as_ptr(), c"decode".as_ptr(), c"localhost".as_ptr(), 0, 0);
        assert!(!engine.is_null());
        assert_eq!(c::getLocalIpAndPort(engine, at.as_mut_ptr().cast(), at.len()), 0);
        c::destroyTransferEngine(engine);
    }
    let at = std::ffi::CStr::from_bytes_until_nul(&at).unwrap().to_str().unwrap();
    let port = at.strip_prefix("localhost:").unwrap_or_else(|| panic!("{at}"));
    let told = format!(r#"{{"ip_or_host_name":"localhost","rpc_port":{port}}}"#);
    assert!(put.lock().unwrap().contains(&told), "{told}");
}
