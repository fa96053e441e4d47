//! Links the library without dependencies, so that it loads into programs of every distribution.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in [
        // No part of this machine's C library. Names are bound at load time, to whatever version is there.
        "-nostartfiles",
        "-Wl,-soname,answers.so",
        // Bound at once: later binding could happen in a signal handler, or after a fork.
        "-Wl,-z,now",
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}
