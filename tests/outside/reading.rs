//! What a description says: old schemas, includes, profiles, package managers by other names.

use serde_json::json;

use crate::support::{self, HOST, Kiln, Ran, Recipe, repository::Repository, squashfs};

/// A description of the schema of IMS's own recipes, in parts.
const PARTS: &str = r#"<?xml version="1.0" encoding="utf-8"?>
<image schemaversion="6.8" name="parts">
  <description type="system">
    <author>Kiln</author>
    <contact>kiln@example.org</contact>
    <specification>A description in parts</specification>
  </description>
  <profiles>
    <profile name="Compute" description="of a compute node"/>
    <profile name="Login" description="of a login node"/>
    <profile name="Archive" description="of another site"/>
  </profiles>
  <include from="this://./parts/preferences.xml"/>
  <preferences profiles="Login"><type image="cpio"/></preferences>
  <preferences profiles="Archive"><type image="tbz"/></preferences>
  <include from="parts/repositories.xml"/>
  <packages type="bootstrap">
    <package name="shell-tools"/>
    <package name="shell-release"/>
  </packages>
  <packages type="image"/>
</image>
"#;

const PREFERENCES: &str = r"<image>
  <preferences>
    <version>1.0.0</version>
    <packagemanager>yum</packagemanager>
    <locale>C</locale>
    <keytable>us</keytable>
    <timezone>UTC</timezone>
    <rpm-excludedocs>true</rpm-excludedocs>
    <rpm-check-signatures>false</rpm-check-signatures>
  </preferences>
</image>
";

const REPOSITORIES: &str = r#"<image>
  <repository type="rpm-md" alias="shell" repository_gpgcheck="false" package_gpgcheck="false"
      username="builder" password="{{ repo_password }}">
    <source path="{{ rpm_repo }}"/>
  </repository>
  <repository type="rpm-md" alias="other" profiles="Compute"><source path="http://127.0.0.1:9/other"/></repository>
</image>
"#;

/// A script for an older kiwi, which stops at the first command that fails.
const SCRIPT: &str = r#"#!/bin/bash
. /.kconfig
. /.profile
set -e
baseMount
suseConfig
echo "profiles $(baseGetProfilesUsed)" > /etc/node-report
baseCleanMount
grep -o 'password="[^"]*"' /image/config.xml
"#;

fn parts() -> Recipe {
    Recipe::copy_of("rpm-shell")
        .with("config.xml", PARTS)
        .with("parts/preferences.xml", PREFERENCES)
        .with("parts/repositories.xml", REPOSITORIES)
        .with(
            ".ims_recipe_template.yaml",
            "template_files: [parts/repositories.xml]\n",
        )
        .with("config.sh", SCRIPT)
        .with("Login/etc/node-kind", "login\n")
}

pub fn build(kiln: &Kiln, recipe: &Recipe, arguments: &[&str]) -> Ran {
    let mut all = vec!["build", recipe.path(), "--arch", HOST];
    all.extend(arguments);
    kiln.run(all)
}

#[test]
fn an_old_description_in_parts_is_built_with_the_profile_that_was_chosen() {
    needs!(support::no_namespaces());
    let (kiln, repository) = (Kiln::new(), Repository::shell().of(HOST));
    let output = tempfile::Builder::new().prefix("kiln-test-").tempdir().unwrap();
    let into = output.path().to_str().unwrap();
    let password = "--set=repo_password=hunter-included-42";
    let chosen = ["--profile", "Login", "--output", into, &repository.set(), password];
    let ran = build(&kiln, &parts(), &chosen).ok();

    let job = &kiln.jobs()[0];
    let warnings = &job["warnings"];
    let calls =
        "scripts call functions of kiwi that are obsolete and do nothing: baseCleanMount, baseMount, suseConfig";
    let obsolete = json!({ "code": "obsolete_function", "message": calls, "hint": null, "step": "build" });
    assert!(warnings.as_array().unwrap().contains(&obsolete), "{warnings}");
    assert!(ran.stderr.contains("\nwarnings   "), "{}", ran.stderr);
    assert!(
        ran.stderr.contains(&format!("warning: {calls} (obsolete_function)")),
        "{}",
        ran.stderr
    );
    let status = kiln.run(["jobs", "status", job["id"].as_str().unwrap()]).ok();
    assert!(
        status.stdout.contains("code = \"obsolete_function\""),
        "{}",
        status.stdout
    );
    let log = kiln.log(job);
    for said in [
        "included: parts/preferences.xml, parts/repositories.xml",
        "kiwi's old schema 6.8",
        "profiles in force: Login",
        &format!("ready: {}", repository.url()),
        "not waited for: http://127.0.0.1:9/other (its profile is not in force)",
        "Selected build type: cpio",
        "warning: baseMount() of kiwi is obsolete and does nothing: Mounting of kernel",
        "warning: suseConfig() of kiwi",
        "warning: baseCleanMount() of kiwi",
        "password=\"***\"",
    ] {
        assert!(log.contains(said), "`{said}` is missing: {log}");
    }
    assert!(!log.contains("included-42"), "{log}");

    let rootfs = output.path().join(HOST).join("rootfs");
    assert_eq!(squashfs::read(&rootfs, "etc/node-kind"), "login\n");
    assert_eq!(squashfs::read(&rootfs, "etc/node-report"), "profiles Login\n");
}

#[test]
fn what_a_description_does_not_have_is_refused_before_the_build() {
    needs!(support::no_namespaces());
    let given = ["--set=repo_password=none", "--set=rpm_repo=http://127.0.0.1:9/none"];
    for (recipe, profiles, code, said) in [
        (
            parts(),
            &["--profile=Login", "--profile=login"][..],
            "profile_unknown",
            "the recipe has the profiles Compute, Login, Archive",
        ),
        (
            parts(),
            &["--profile=Compute"],
            "no_image_type",
            "with Compute: the recipe has the profiles Compute, Login, Archive",
        ),
        (
            parts().with_config("this://./parts/", "this://./parts/../../"),
            &[],
            "recipe_config_invalid",
            "which is outside the recipe",
        ),
        (
            parts().with(
                "parts/preferences.xml",
                "<image><include from=\"this://config.xml\"/></image>",
            ),
            &[],
            "recipe_config_invalid",
            "parts/preferences.xml includes another file",
        ),
    ] {
        let kiln = Kiln::new();
        let error = build(&kiln, &recipe, &[profiles, &given].concat()).failed();
        assert_eq!(kiln.failure_code(), code, "{error}");
        assert!(error.contains(said), "`{said}` is missing: {error}");
    }
}
