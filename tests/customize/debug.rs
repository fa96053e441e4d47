//! Tests debug shells of builds.

use super::site::Site;
use crate::support::{self, Recipe, repository::Repository};

/// A create job with a debug shell, of a recipe whose config.sh is this.
fn job(site: &Site, repository: &Repository, script: &str) -> String {
    let recipe = Recipe::with_script(script);
    let recipe = site.server.recipe(&recipe, repository, &["--require-dkms", "false"]);
    site.server.build(&recipe, &["--enable-debug", "true"])
}

#[test]
fn a_build_can_be_looked_at_when_it_has_failed_and_when_it_has_not() {
    needs!(support::no_namespaces(), support::not_root());
    let repository = Repository::native();
    let ports = format!("[{}]", repository.port());
    let site = Site::empty(&[("KILN__ISOLATION__LOOPBACK_PORTS", &ports)]);

    let failed = job(&site, &repository, "echo half > /half; exit 5");
    let shell = site.open(&failed);
    assert_eq!(site.record(&failed)["status"], "waiting_on_user");
    assert_eq!(site.record(&failed)["ssh_containers"][0]["name"], "debug");
    assert_eq!(
        shell.run("cat /mnt/image/image-root/half; echo $IMS_JOB_ID"),
        format!("half\n{failed}\n")
    );
    // The verdict does not change the failure.
    shell.run("touch /mnt/image/complete");
    assert_eq!(site.failed(&failed), "script_failed");

    let built = job(&site, &repository, "echo whole > /whole");
    let shell = site.open(&built);
    shell.run("echo more >> /mnt/image/image-root/whole; touch /mnt/image/complete");
    let (_, after) = site.succeeded(&built);
    assert_eq!(
        support::tool("unsquashfs", &["-cat", after.to_str().unwrap(), "whole"]),
        "whole\nmore\n"
    );

    let thrown_away = job(&site, &repository, "true");
    site.open(&thrown_away).run("touch /mnt/image/failed");
    assert_eq!(site.failed(&thrown_away), "shell_failed");
    site.stop();
}
