//! The docker driver on a real Podman, which speaks Docker's API with differences.

use crate::{
    drivers::{
        cases::conformance,
        docker::{ContainersOf, Peer},
    },
    support::engine::Engine,
};

pub struct Podman;

impl Peer for Podman {
    const NAME: &'static str = "podman";
    // That of the engine's host.
    const RESOLVER: &'static str = "10.0.2.100";

    fn lack() -> Option<String> {
        Engine::lack_of_podman()
    }

    fn engine() -> &'static Engine {
        Engine::podman()
    }
}

conformance!(ContainersOf<Podman>);
