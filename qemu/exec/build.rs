//! How the program is linked: no C start-up code, and one segment with all code and constants, which Kiln takes out of
//! the file (`src/emulation/twins/join.rs`).

fn main() {
    for argument in [
        "-nostartfiles",
        "-nodefaultlibs",
        "-static-pie",
        "-Wl,-z,noseparate-code",
        "-Wl,--build-id=none",
        "-Wl,-z,norelro",
    ] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
