//! The docker driver on a real Podman, which speaks Docker's API with differences.

use crate::{
    drivers::{
        cases::conformance,
        docker::{ContainersOf, Peer},
        place::{Kind, Place},
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

/// Docker's request to import an image leaves Podman with a copy of the toolbox, of nearly 1 GB, that nothing removes.
#[test]
async fn images_leave_no_archive_on_the_engines_host() {
    needs!(ContainersOf::<Podman>::lack());
    let place = Place::<ContainersOf<Podman>>::new().await;
    let spec = place.spec("exit 0");
    assert_eq!(place.run(&spec).await.exit_code, 0);
    place.destroy(spec.job).await;
    // Another test may be importing one, by the request that Kiln uses.
    let mut files = Engine::podman().passing_files();
    files.retain(|name| name.starts_with("api_load"));
    assert!(files.is_empty(), "{files:?}");
}
