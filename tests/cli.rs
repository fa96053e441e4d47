//! Tests the output of the command line, word by word.

use std::process::Stdio;

use kiln::artifacts::{ArtifactStore, S3Settings};
use kiln_records::ImageId;
use kiln_s3::EmbeddedS3;

use crate::support::{self, Kiln, Ran, Recipe};

fn show(ran: &Ran) -> String {
    format!(
        "exit code {}\n--- stdout\n{}--- stderr\n{}",
        ran.code.unwrap_or(-1),
        ran.stdout,
        ran.stderr
    )
}

fn shown(args: &[&str]) -> String {
    let kiln = Kiln::bare();
    let mut command = kiln.command(args);
    if args.contains(&"--help") {
        // It would show the directory, and break lines according to its length.
        command.env_remove("KILN_DATA_DIR");
    }
    let ran = support::run(command);
    kiln.assert_clean();
    show(&ran).replace(kiln.data().to_str().unwrap(), "DATA")
}

#[test]
fn help() {
    insta::assert_snapshot!(shown(&["--help"]), @r"
        exit code 0
        --- stdout
        Build operating-system images for any CPU architecture on the hosts you have

        Usage: kiln [OPTIONS] <COMMAND>

        Commands:
          build               Build an image from a recipe
          lock                Write the packages of a recipe's images into a lock file
          recipes             Manage the recipes of a server
          images              Manage the images of a server
          jobs                Manage the jobs of a server
          public-keys         Manage the public keys that may log in to shells of jobs
          deleted             Manage deleted recipes, images and public keys
          remote-build-nodes  Manage the hosts that run jobs of their own architecture
          customize           Make a new image from an existing one, with commands, scripts and playbooks
          shell               Log in to the shell of a job
          schedules           Manage the recurring jobs of a server
          top                 Show the jobs and places of a server on one screen
          prune               Remove what the retention rules of a server give up
          audit               Show who changed what on a server
          webhooks            Show who is told of jobs and image sets, and what did not arrive
          sets                Manage the image sets of a server
          catalogue           Find the images of complete sets, and move channels
          verify              Check that an image is what its builder made
          check               Check images and recipes
          ims                 Accept the commands of `cray ims`, such as `kiln ims images list`
          login               Store a server and the token for it
          logout              Delete the stored token of a server
          toolbox             Manage the toolbox: the root file system that builds run in
          sandboxes           Manage the sandboxes kept by `kiln build --keep`
          doctor              Check whether this host can build images, and suggest remedies
          artifacts           Manage the artifacts of builds in S3
          publish             Publish images under one tag of a registry, or to OpenStack
          inspect             Show what a name in a registry stands for
          mirror              Copy an image between registries and directories
          registry            Manage the logins to registries
          serve               Run the server: the REST API of IMS and Kiln's own
          demo                Build a small recipe for two architectures, and show the dashboard
          tokens              Manage the tokens for the API of `kiln serve`
          import              Import the records of another service
          export              Export records for another service, an image as a disk, or a rule for pods
          backup              Copy the records of SQLite to a file. Servers may run
          restore             Put records from a backup where there are none
          config              Check and show the configuration
          completions         Print a completion script for a shell
          man                 Write a manual page for each command
          help                Print this message or the help of the given subcommand(s)

        Options:
              --data-dir <DIR>  The directory for toolboxes, sandboxes, records and the embedded S3 store
                                [env: KILN_DATA_DIR=]
              --config <FILE>   The configuration file [default: ~/.config/kiln/kiln.toml if it exists]
                                [env: KILN_CONFIG=]
          -q, --quiet           Print only errors and results
          -v, --verbose         Print all output of tools
          -h, --help            Print help
          -V, --version         Print version
        --- stderr
    ");
}

#[test]
fn help_of_check_recipe() {
    insta::assert_snapshot!(shown(&["check", "recipe", "--help"]), @r"
        exit code 0
        --- stdout
        Say what is understood of a recipe, and build nothing.

        It is read as for a build, by the agent in a sandbox on this host: its templates are rendered, its
        description is converted and given to kiwi, and its repositories are asked for their indexes. Exit
        code 0 means that it is understood, 1 that a build would be refused, with the build's own error. No
        record is made.

        Usage: kiln check recipe [OPTIONS] <DIR|ARCHIVE|ID>

        Arguments:
          <DIR|ARCHIVE|ID>
                  The recipe: a directory, an archive of one, or the id or name of a server's recipe

        Options:
              --arch <ARCH>
                  Architectures to read it for [default: what the recipe declares, else this host's]

              --data-dir <DIR>
                  The directory for toolboxes, sandboxes, records and the embedded S3 store
                  
                  [env: KILN_DATA_DIR=]

              --config <FILE>
                  The configuration file [default: ~/.config/kiln/kiln.toml if it exists]
                  
                  [env: KILN_CONFIG=]

              --set <KEY=VALUE>
                  A value for the recipe's templates. Kiln itself knows `debian_mirror`

              --lenient-templates
                  Let template names without a value become empty text, as IMS does

          -q, --quiet
                  Print only errors and results

              --profile <NAME>
                  A profile of the recipe to build; may be given several times [default: those that the
                  recipe has in force by itself]

          -v, --verbose
                  Print all output of tools

              --add-repo <SOURCE,TYPE,…>
                  A repository to add, as for kiwi:
                  SOURCE,TYPE,ALIAS,PRIORITY,IMAGEINCLUDE,PACKAGE_GPGCHECK,{SIGNING_KEY;…},COMPONENTS,DISTRIBUTION,REPO_GPGCHECK,SOURCETYPE,
                  of which the end may be left out; may be given several times

              --add-repo-credentials <FILE>
                  The login of the repository that is added at the same place of the order: USER:PASSWORD,
                  or a file that begins with it

              --set-repo <SOURCE,TYPE,…>
                  Replace the first repository of the recipe that is in force, in the same form; what is
                  empty stays

              --set-repo-credentials <FILE>
                  The login of that repository: USER:PASSWORD, or a file that begins with it

              --ignore-repos
                  Leave the recipe's repositories out

              --add-package <NAME>
                  A package to install beside those of the recipe; may be given several times

              --add-bootstrap-package <NAME>
                  A package for the beginning of the root; may be given several times

              --delete-package <NAME>
                  A package to uninstall at the end; may be given several times

              --json
                  Print the result as JSON

          -h, --help
                  Print help (see a summary with '-h')

        Server and output:
              --server <URL>
                  The server, or `local` for the records of the data directory [default: the server of `kiln
                  login`, else http://127.0.0.1:9000 if something listens there, else local]
                  
                  [env: KILN_SERVER=]

              --token <FILE>
                  A file with the token: the token alone, or JSON with `access_token` as `cray auth login`
                  keeps it. `KILN_TOKEN` may hold a token itself

              --ca-file <FILE>
                  The authorities that the server's certificate may come from, PEM, instead of the system's
                  
                  [env: KILN_CA_FILE=]

              --format <FORMAT>
                  How results are written
                  
                  [env: KILN_FORMAT=]
                  [default: toml]
                  [possible values: toml, json, yaml, table]
        --- stderr
    ");
}

#[test]
fn help_of_build() {
    insta::assert_snapshot!(shown(&["build", "--help"]), @r"
        exit code 0
        --- stdout
        Build an image from a recipe

        Usage: kiln build [OPTIONS] <RECIPE>

        Arguments:
          <RECIPE>  The recipe: a directory, an archive of one (tar: plain, gzip, bzip2, xz, zstd; or zip),
                    a Containerfile in its context, or a layer file of OpenCHAMI's

        Options:
              --arch <ARCH>
                  Architectures to build for [default: what the recipe declares, else this host's]
              --data-dir <DIR>
                  The directory for toolboxes, sandboxes, records and the embedded S3 store [env:
                  KILN_DATA_DIR=]
              --config <FILE>
                  The configuration file [default: ~/.config/kiln/kiln.toml if it exists] [env:
                  KILN_CONFIG=]
              --type <TYPE>
                  What the recipe is written for [default: `kiwi-ng` if it has a description of kiwi's, else
                  `containerfile`]
          -q, --quiet
                  Print only errors and results
              --set <KEY=VALUE>
                  A value for the recipe's templates. Kiln itself knows `debian_mirror`
              --lenient-templates
                  Let template names without a value become empty text, as IMS does
          -v, --verbose
                  Print all output of tools
              --profile <NAME>
                  A profile of the recipe to build; may be given several times [default: those that the
                  recipe has in force by itself]
              --add-repo <SOURCE,TYPE,…>
                  A repository to add, as for kiwi:
                  SOURCE,TYPE,ALIAS,PRIORITY,IMAGEINCLUDE,PACKAGE_GPGCHECK,{SIGNING_KEY;…},COMPONENTS,DISTRIBUTION,REPO_GPGCHECK,SOURCETYPE,
                  of which the end may be left out; may be given several times
              --add-repo-credentials <FILE>
                  The login of the repository that is added at the same place of the order: USER:PASSWORD,
                  or a file that begins with it
              --set-repo <SOURCE,TYPE,…>
                  Replace the first repository of the recipe that is in force, in the same form; what is
                  empty stays
              --set-repo-credentials <FILE>
                  The login of that repository: USER:PASSWORD, or a file that begins with it
              --ignore-repos
                  Leave the recipe's repositories out
              --add-package <NAME>
                  A package to install beside those of the recipe; may be given several times
              --add-bootstrap-package <NAME>
                  A package for the beginning of the root; may be given several times
              --delete-package <NAME>
                  A package to uninstall at the end; may be given several times
          -f, --file <PATH>
                  The Containerfile's path in its context [default: Containerfile, else Dockerfile]
              --target <STAGE>
                  The stage of the Containerfile to build [default: the last]
              --secret <NAME>
                  A file for RUN --mount=type=secret: id=NAME,src=FILE, or id=NAME,env=VARIABLE, or the name
                  of one in [containers]; may be given several times
              --name <NAME>
                  The image's name [default: the recipe's]
              --image-set <NAME[@VERSION]>
                  Also make the images a set of this name and version [default of the version: the time,
                  UTC]
              --output <DIR>
                  Also write the artifacts to DIR/ARCH
              --keep
                  Keep the sandbox's files, the root among them, and say where they are
              --twins <LEVEL>
                  Which tools of the image may run as native twins in an emulated build [default: full, or
                  what the configuration says] [possible values: off, tools, shell, full]
              --cache <DEPTH>
                  How much of earlier builds may be reused: `packages`, the root once all packages are
                  installed; `similar`, also that of a recipe with other packages, to which what is missing
                  is added; `image`, the whole image if recipe, values, repositories and tools are the same
                  [default: packages, or what the configuration says] [possible values: none, packages,
                  similar, image]
              --cache-from <ID>
                  Start from the packages of this image, whatever the repositories have by now, if all else
                  is the same
              --no-cache
                  Reuse nothing of earlier builds
              --verify-twins
                  Make an emulated root once more, without native twins, and compare: takes as long as
                  `--twins off` besides
              --reproducible[=<BOOL>]
                  Whether the same inputs give the same image, to the last byte [default: false, or as the
                  recipe says]
              --source-date-epoch <SECONDS>
                  The date in a reproducible image, in seconds since 1970 [default: that of the recipe's
                  newest file]
              --compression <COMPRESSION>
                  Compressor of the squashfs [default: zstd] [possible values: zstd, gzip, xz, lz4]
              --compression-level <N>
                  The compressor's level [default: zstd 3, gzip 9]
              --kernel-file-name <NAME>
                  The kernel's file name in /boot. Given, an image without it is an error [default: Image on
                  aarch64, else vmlinuz]
              --initrd-file-name <NAME>
                  The initrd's file name in /boot [default: initrd]
              --kernel-parameters-file-name <NAME>
                  The kernel parameters' file name in /boot; the file may be absent [default:
                  kernel-parameters]
              --repos-timeout <SECONDS>
                  How long to wait for the recipe's repositories, in seconds [default: 500]
              --isolation <KIND>
                  How builds are isolated from this host. `auto`: in virtual machines if this host runs them
                  fast, else by namespaces [env: KILN_ISOLATION] [default: auto] [possible values: auto, vm,
                  namespace]
              --memory <SIZE>
                  Memory that each build may use, such as 8GiB [default: that of all jobs,
                  `default_mem_size_gib`]
              --disk <SIZE>
                  Disk that each build may use, such as 20GiB [default: that of all jobs,
                  `default_image_size_gib`]
              --cpus <N>
                  CPUs that each build may use [default: all]
              --locked
                  Refuse other packages than those in the recipe's kiln.lock, which `kiln lock` writes
          -h, --help
                  Print help
        --- stderr
    ");
}

#[test]
fn help_of_artifacts() {
    insta::assert_snapshot!(shown(&["artifacts", "--help"]), @r"
        exit code 0
        --- stdout
        Manage the artifacts of builds in S3

        Usage: kiln artifacts [OPTIONS] <COMMAND>

        Commands:
          list    List the objects of every image, or of one
          get     Download the objects of an image
          delete  Delete an image for good: its record, and its objects, the manifest first
          serve   Run the embedded S3 service, so that any S3 client can read the images, until Ctrl-C
          help    Print this message or the help of the given subcommand(s)

        Options:
              --data-dir <DIR>  The directory for toolboxes, sandboxes, records and the embedded S3 store
                                [env: KILN_DATA_DIR=]
              --config <FILE>   The configuration file [default: ~/.config/kiln/kiln.toml if it exists]
                                [env: KILN_CONFIG=]
          -q, --quiet           Print only errors and results
          -v, --verbose         Print all output of tools
          -h, --help            Print help
        --- stderr
    ");
}

#[test]
fn no_command() {
    assert!(shown(&[]).starts_with("exit code 2\n"));
}

#[test]
fn an_unknown_architecture() {
    let recipe = Recipe::copy_of("rpm-minimal");
    insta::assert_snapshot!(shown(&["build", recipe.path(), "--arch", "vax"]), @r#"
        exit code 1
        --- stdout
        --- stderr
        error: `vax` is not an architecture Kiln knows; use one of x86_64, aarch64, ppc64le, s390x, riscv64

        hint: `--arch` takes one, or several with commas between them
    "#);
}

#[test]
fn an_unknown_recipe_type() {
    let recipe = Recipe::copy_of("rpm-minimal");
    insta::assert_snapshot!(shown(&["build", recipe.path(), "--type", "packer"]), @r#"
        exit code 1
        --- stdout
        --- stderr
        error: `packer` is no recipe type Kiln builds

        hint: kiwi-ng and containerfile are those that there are
    "#);
}

#[test]
fn a_recipe_that_is_not_there() {
    insta::assert_snapshot!(shown(&["build", "/nowhere/at/all"]), @r#"
        exit code 1
        --- stdout
        --- stderr
        error: there is no recipe at /nowhere/at/all

        hint: name a directory with a config.xml or a Containerfile, or an archive of one
    "#);
}

#[test]
fn values_and_names_that_are_none() {
    insta::assert_snapshot!(shown(&["build", "R", "--set", "no-value"]), @r#"
        exit code 2
        --- stdout
        --- stderr
        error: invalid value 'no-value' for '--set <KEY=VALUE>': it must have the form KEY=VALUE

        For more information, try '--help'.
    "#);
    insta::assert_snapshot!(shown(&["build", "R", "--kernel-file-name", "../vmlinuz"]), @r#"
        exit code 2
        --- stdout
        --- stderr
        error: invalid value '../vmlinuz' for '--kernel-file-name <NAME>': it must be a file name of letters, digits and `._+-`

        For more information, try '--help'.
    "#);
}

#[test]
fn no_artifacts() {
    insta::assert_snapshot!(shown(&["artifacts", "list"]), @r#"
        exit code 0
        --- stdout
        --- stderr
    "#);
    insta::assert_snapshot!(shown(&["artifacts", "list", "00000000-0000-4000-8000-000000000000"]), @r"
        exit code 1
        --- stdout
        --- stderr
        error: there is no image 00000000-0000-4000-8000-000000000000

        hint: `kiln artifacts list` shows all images
    ");
    insta::assert_snapshot!(shown(&["artifacts", "get", "00000000-0000-4000-8000-000000000000"]), @r"
        exit code 1
        --- stdout
        --- stderr
        error: there is no image 00000000-0000-4000-8000-000000000000

        hint: `kiln artifacts list` shows all images
    ");
}

#[test]
fn no_toolbox() {
    insta::assert_snapshot!(shown(&["toolbox", "show"]), @r#"
        exit code 1
        --- stdout
        --- stderr
        error: no toolbox was built from this version's description yet

        hint: run `kiln toolbox build`
    "#);
}

#[test]
fn a_wrong_configuration() {
    let kiln = Kiln::bare();
    let file = kiln.data().join("kiln.toml");
    fs_err::write(&file, "data_dir = \"/x\"\ncolour = \"blue\"\n").unwrap();
    let ran = kiln.run(["--config", file.to_str().unwrap(), "artifacts", "list"]);
    insta::assert_snapshot!(show(&ran).replace(kiln.data().to_str().unwrap(), "DATA"), @r"
        exit code 1
        --- stdout
        --- stderr
        error: DATA/kiln.toml:2: there is no key or section `colour`

        hint: `kiln config reference` lists every key
    ");
}

#[test]
fn completions() {
    for (shell, start) in [
        ("bash", "_kiln() {"),
        ("zsh", "#compdef kiln"),
        ("fish", "# Print an optspec"),
    ] {
        let script = Kiln::bare().run(["completions", shell]).ok().stdout;
        assert!(script.starts_with(start), "{}", &script[..script.len().min(200)]);
        assert!(script.contains("artifacts"));
    }
}

/// A library's warning looks like every other message of the command; `KILN_LOG` adds lines for developers.
#[test]
async fn warnings_are_printed_like_errors() {
    let kiln = Kiln::bare();
    let image = ImageId::new();
    {
        let any = "127.0.0.1:0".parse().unwrap();
        let s3 = EmbeddedS3::start(&kiln.data().join("s3"), any).await.unwrap();
        let store = ArtifactStore::connect(&S3Settings::from(&s3)).await.unwrap();
        store
            .put_log(image, futures::stream::iter([Ok("a log".into())]))
            .await
            .unwrap();
        s3.shutdown().await;
    }
    // A directory cannot be removed as a file is.
    let bodies: Vec<_> = fs_err::read_dir(kiln.data().join("s3/bodies")).unwrap().collect();
    let [Ok(body)] = &bodies[..] else { panic!("{bodies:?}") };
    fs_err::remove_file(body.path()).unwrap();
    fs_err::create_dir(body.path()).unwrap();

    let ran = kiln.run(["artifacts", "delete", &image.to_string()]).ok();
    let body = body.path();
    assert_eq!(
        ran.stderr,
        format!(
            "warning: embedded S3: a body could not be removed: failed to remove file `{}`: Is a directory (os error 21)\n",
            body.display()
        )
    );

    let mut more = kiln.command(["artifacts", "list"]);
    more.env("KILN_LOG", "debug");
    let ran = support::run(more).ok();
    assert!(ran.stderr.contains(" DEBUG "), "{}", ran.stderr);
    assert!(!ran.stderr.contains('\u{1b}'), "{}", ran.stderr);
}

/// As in `kiln completions bash | head`.
#[test]
fn a_reader_that_goes_away_is_no_failure() {
    for args in [&["completions", "bash"][..], &["--help"], &["artifacts", "list"]] {
        let kiln = Kiln::bare();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = kiln
            .command(args)
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = output.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {}: {said}", output.status);
        assert_eq!(said, "", "{args:?}");
        kiln.assert_clean();
    }
}
