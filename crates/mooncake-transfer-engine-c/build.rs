//! The library's own name: without one, programs that are linked with it look for it at the path where it lay then.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtransfer_engine.so");
    println!("cargo:rerun-if-changed=build.rs");
}
