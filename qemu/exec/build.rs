//! Links the program without C start-up code, and with one segment for all code and constants, which Kiln extracts
//! from the file (`src/agent/twins/join.rs`).

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
