//! The table of failures: codes, conditions and advice. Pure: no I/O.

use super::row::codes;

codes! {
    ["The recipe", ""]
    RecipeMissing = "recipe_missing", 422, Failed, Lasting,
        "the given path does not exist",
        "name a directory with a `config.xml`, or an archive of one";
    RecipeConfigMissing = "recipe_config_missing", 422, Failed, Lasting,
        "the recipe has no `config.xml`, no `*.kiwi` file and no `Containerfile` at its top, or several directories at its top have one; \
         descriptions in YAML, JSON or TOML do not count",
        "the message names what comes nearest. An archive may have one directory around the recipe, with other files beside it";
    RecipeConfigInvalid = "recipe_config_invalid", 422, Failed, Lasting,
        "the description is not XML in the encoding that it declares, has a DTD or entities, has a root element other than \
         `image`, includes what is not in the recipe, or does not match kiwi's schema",
        "the cause has line and column, or the log shows the difference. The positions refer to the rendered \
         templates, which `--keep` leaves in `scratch/recipe`";
    ProfileUnknown = "profile_unknown", 422, Failed, Lasting,
        "the recipe has no profile of this name for the architecture; nothing of the recipe was run",
        "the message lists the profiles: `--profile NAME`";
    NoImageType = "no_image_type", 422, Failed, Lasting,
        "no `<type>` is in force for the architecture and the profiles; nothing of the recipe was run",
        "`--profile NAME` with a profile that has one; the message lists them";
    RecipeTooLarge = "recipe_too_large", 413, Failed, Lasting,
        "the archive is larger than 1 GiB, or the directory than 4 GiB; the message names its largest file",
        "move large files into packages";
    RecipeNotArchive = "recipe_not_archive", 422, Failed, Lasting,
        "the file is not a tar archive or zip file, or is encrypted, or its compression is not supported",
        "use tar, plain or with gzip, bzip2, xz or zstd, or zip";
    RecipeDamaged = "recipe_damaged", 422, Failed, Lasting,
        "the archive is truncated",
        "create it again; `tar -tf` or `unzip -t` must read it to the end";
    RecipeUnsafe = "recipe_unsafe", 422, Failed, Lasting,
        "an entry has an absolute path or `..`, is a device or a fifo, or is a link beside the description that leaves the \
         recipe",
        "`tar -czf recipe.tgz -C DIRECTORY .`; put what a link leads to in its place, as `cp -rL` does";
    RecipeBomb = "recipe_bomb", 422, Failed, Lasting,
        "the archive unpacks to more than 4 GiB, 200 000 entries, or 200 times its own size (beyond 64 MiB, and not \
         for a directory that Kiln packed)",
        "leave generated files out; the message names the entry";
    RecipeMismatch = "recipe_mismatch", 502, Failed, OfStorage,
        "the recipe in S3 differs from the uploaded one",
        "build again; if it fails again, look for another writer to the recipes bucket";
    RecipeUnreachable = "recipe_unreachable", 502, Failed, OfStorage,
        "the sandbox could not fetch the recipe from S3 in five attempts",
        "check `s3.public_endpoint`: sandboxes use that address";
    UnknownRecipeType = "unknown_recipe_type", 422, Failed, Lasting,
        "`--type` is neither `kiwi-ng` nor `containerfile`",
        "leave it out";
    UnknownArch = "unknown_arch", 422, Failed, Lasting,
        "`--arch` is not x86_64, aarch64, ppc64le, s390x, riscv64 or another name of these",
        "use one of the names in the message";

    ["Lock files", ""]
    LockMissing = "lock_missing", 422, Failed, Lasting,
        "the job may have locked packages only, and the recipe has no `kiln.lock`, or none for the architecture; nothing of the \
         recipe was run",
        "`kiln lock RECIPE`";
    LockInvalid = "lock_invalid", 422, Failed, Lasting,
        "`kiln.lock` is not TOML, not of a known version, larger than 8 MiB, or has an entry twice",
        "remove it, and `kiln lock RECIPE`";
    LockMismatch = "lock_mismatch", 422, Failed, Lasting,
        "the installed packages are not those of `kiln.lock`; the message names the first, the log has all. No script or file of \
         the recipe was used",
        "`kiln lock --update` shows what is new, and accepts it; or use a repository that still has the locked packages";
    LockUnknown = "lock_unknown", 422, Failed, Lasting,
        "it is not known which packages a root or an image has, so they can be neither locked nor compared",
        "the message says why; an image of an earlier version of Kiln must be built again";
    LockExists = "lock_exists", 409, Failed, Lasting,
        "`kiln lock` would replace what is locked",
        "`kiln lock --update`";

    ["Templates", ""]
    TemplateListInvalid = "template_list_invalid", 422, Failed, Lasting,
        "`.ims_recipe_template.yaml` is not YAML, or has no `template_files`",
        "`template_files: [config.xml]`";
    TemplateFileMissing = "template_file_missing", 422, Failed, Lasting,
        "a listed file does not exist, or is outside the recipe",
        "paths are relative to the recipe's directory";
    TemplateUndefined = "template_undefined", 422, Failed, Lasting,
        "a name has no value",
        "`--set NAME=VALUE`, or a `default` in the template; `--lenient-templates` turns it into empty text";
    TemplateSyntax = "template_syntax", 422, Failed, Lasting,
        "a listed file is not a valid Jinja2 template",
        "correct it at the given line, or remove it from the list";
    TemplateFailed = "template_failed", 422, Failed, Lasting,
        "an expression fails or takes too long, or the result exceeds 32 MiB",
        "correct it at the given line; all values are text";

    ["Containerfiles", "What buildah says, with the line of the file or the instruction."]
    ContainerfileInvalid = "containerfile_invalid", 422, Failed, Lasting,
        "the Containerfile cannot be read, or an instruction names what there is not: a stage, a file of the context, a secret",
        "the message is buildah's";
    InstructionFailed = "instruction_failed", 500, Failed, OfTwins,
        "a `RUN` ended with an error, or another instruction could not be carried out",
        "its output precedes that line in the log";
    BaseUnreachable = "base_unreachable", 502, Failed, Lasting,
        "the image of a `FROM` or `COPY --from` cannot be had: the registry does not answer, has no such image, or wants a login",
        "check its name; the message is the registry's";
    BaseWithoutArch = "base_without_arch", 422, Failed, Lasting,
        "the image of a `FROM` does not exist for the architecture of the job",
        "`kiln inspect` shows which architectures it has; `FROM --platform=$BUILDPLATFORM` takes that of the host for a stage";
    BaseUnusable = "base_unusable", 422, Failed, Lasting,
        "the image of a `FROM` is damaged, encrypted, or of a format that is not read",
        "the message is buildah's";
    LayerFileInvalid = "layer_file_invalid", 422, Failed, Lasting,
        "a layer file of OpenCHAMI cannot be read, or asks for what Kiln does not do",
        "the message names the key; [openchami.md](openchami.md) has what is taken";
    SecretUnavailable = "secret_unavailable", 422, Failed, Lasting,
        "a secret that the job's Containerfile may have cannot be read, or is not there for the user of the job",
        "`secrets` in `[containers]` has those of the site, and their users";
    SecretInImage = "secret_in_image", 422, Failed, Lasting,
        "the finished image has a secret in a file or in its configuration",
        "use the secret where the `RUN` has it, at /run/secrets/NAME, and copy it nowhere";
    ContainerfileIgnored = "containerfile_ignored", 422, Failed, Lasting,
        "a warning: an instruction of the Containerfile has no place in an OCI image, such as `HEALTHCHECK`",
        "remove it, or set it where the container is started";

    ["Building", ""]
    RepoUnreachable = "repo_unreachable", 500, Failed, Lasting,
        "a repository does not answer within `--repos-timeout` (500 s), refuses requests for a minute, or its name \
         cannot be resolved",
        "check the addresses in `config.xml`; the cause lists each with its answer";
    RepoSignature = "repo_signature", 500, Failed, Lasting,
        "a repository is not signed, or signed with an untrusted key",
        "name the key ([recipes.md](recipes.md#signatures)), or put it into `signing_keys` in `[trust]`";
    RepoInconsistent = "repo_inconsistent", 500, Failed, Lasting,
        "a repository's files do not match its index: it is being published, or a cache is stale",
        "build again";
    RepoExpired = "repo_expired", 500, Failed, Lasting,
        "the index of a Debian repository is older than its signer allows: the mirror is frozen, or no longer updated",
        "use a mirror that is updated, or accept this one ([recipes.md](recipes.md#frozen-mirrors))";
    RepoNotYetValid = "repo_not_yet_valid", 500, Failed, Lasting,
        "the index of a Debian repository is from the future",
        "set the clock of the host, or accept the index ([recipes.md](recipes.md#frozen-mirrors))";
    RepoWithoutArch = "repo_without_arch", 422, Failed, Lasting,
        "no repository of the recipe has packages for the architecture of the job, by the indexes of all",
        "build for another architecture, or name another release of the distribution";
    PackageNotFound = "package_not_found", 500, Failed, Lasting,
        "no repository has the package for this architecture",
        "check the name; the message is from the package manager";
    UnmetDependency = "unmet_dependency", 500, Failed, Lasting,
        "a package depends on another that no repository of the recipe has",
        "add the repository, or remove the package; the message is from the package manager";
    ScriptletFailed = "scriptlet_failed", 500, Failed, OfTwins,
        "a script of a package failed",
        "its output precedes that line in the log";
    ScriptFailed = "script_failed", 500, Failed, OfTwins,
        "`config.sh` or another script of the recipe failed",
        "its output precedes that line in the log";
    EmulatorFault = "emulator_fault", 500, Failed, OfTwins,
        "qemu, a program under it or the native twin of one was killed by SIGSEGV, SIGILL, SIGBUS, SIGABRT, SIGTRAP, \
         SIGFPE or SIGSYS, even if the script continued; or a native twin computed what CPUs have other results for. In \
         native builds only the script's exit status counts",
        "the message names the program and the signal, and the log has a line `emulator fault:` for each. Build \
         natively or without that program to find out whether qemu is at fault";
    ExecFormat = "exec_format", 500, Failed, OfTwins,
        "a program of a foreign architecture was started in the image",
        "find the package or script that installed it";
    InitrdFailed = "initrd_failed", 500, Failed, OfTwins,
        "dracut could not make the initrd",
        "check its configuration and modules in the recipe; the message is from dracut";
    IdOutside = "id_outside", 500, Failed, Lasting,
        "a file is to belong to an id that the sandbox does not have, or a program is to run with it",
        "the hint says which ids there are. Give the user who runs Kiln more in `/etc/subuid` and `/etc/subgid`, or build in \
         a virtual machine (`--isolation vm`), which has all";
    DeviceRefused = "device_refused", 500, Failed, Lasting,
        "a script or a package makes a device node, which the kernel allows in a virtual machine only",
        "leave it to the system that boots the image (systemd-tmpfiles, udev), or build with `--isolation vm`";
    TwinsDiffer = "twins_differ", 500, Failed, OfTwins,
        "the job verifies its twins (`--verify-twins`), and the root that they helped to make is not the one that plain \
         emulation makes, or plain emulation cannot make one",
        "the message has the first differences and the log all. The job is tried again without twins, so its image is \
         right; please report the program";
    BuildFailed = "build_failed", 500, Failed, OfTwins,
        "kiwi failed for another reason",
        "the message is kiwi's last error; the log has everything before it";
    OutOfMemory = "out_of_memory", 500, Failed, Lasting,
        "the kernel killed a process of the build because it ran out of memory",
        "`--memory SIZE`, fewer architectures at once, or a larger machine";
    DiskFull = "disk_full", 507, Failed, Lasting,
        "the file system of the data directory has no free space or inodes",
        "free some space, or move the data directory: `KILN_DATA_DIR`";
    ToolMissing = "tool_missing", 500, Failed, Lasting,
        "a program of the toolbox cannot be started",
        "remove the toolbox and run `kiln toolbox build`; if it fails again, the toolbox's definition lacks a package";
    ToolKilled = "tool_killed", 500, Failed, Killed,
        "a program of the toolbox that makes the image was killed, and not by the kernel for lack of memory; retried",
        "see the kernel log, and what else on the host ends processes";
    NothingToResume = "nothing_to_resume", 409, Failed, Lasting,
        "a job cannot resume from a step, because the results of earlier steps are missing",
        "start it from the beginning";
    Cancelled = "cancelled", 409, Failed, Lasting,
        "the job was cancelled",
        "`kiln jobs retry` repeats it";
    NoVm = "no_vm", 500, Failed, Lasting,
        "a job of the service needs a virtual machine (a foreign architecture or `require_dkms`), and no place has \
         one; the message gives the reason for each place",
        "`kiln doctor`; or `foreign = \"namespace\"` in `[isolation]`, if the recipes can be trusted with the host's \
         kernel; or `require_dkms: false`";
    NoPlace = "no_place", 500, Failed, Lasting,
        "no place can make sandboxes",
        "`kiln doctor`";
    NotEquipped = "not_equipped", 500, Failed, Lasting,
        "the server has no agent for the architecture of a build node",
        "run `make agent ARCH=…`, and put the resulting directory beside the server's `kiln-agent` \
         ([docker.md](docker.md#another-host-as-a-build-node))";
    NotIsolated = "not_isolated", 500, Failed, Lasting,
        "the agent of a job that needs a virtual machine found that it runs in none, or on the server's kernel; \
         nothing of the recipe was run",
        "check the engine's runtime";
    NoCapacity = "no_capacity", 500, Failed, Lasting,
        "a job asks for more memory or disk than the whole host has for jobs, or waited for disk space that no job holds",
        "request less, or see `[capacity]`";
    ImageUnreachable = "image_unreachable", 502, Failed, OfStorage,
        "the root file system of the image to change cannot be read from S3; retried",
        "check the endpoint";
    ImageCorrupt = "image_corrupt", 422, Failed, Lasting,
        "the root file system does not match the image's manifest, or is not a squashfs that can be unpacked",
        "build the image again; the message is from unsquashfs";
    ChangeUnreachable = "change_unreachable", 502, Failed, OfStorage,
        "a script or playbook of the job cannot be read from S3, or differs from the uploaded one",
        "start the job again";
    ChangeFailed = "change_failed", 500, Failed, OfTwins,
        "a command, script or playbook of `kiln customize` failed",
        "its output precedes that line in the log";
    BadPublicKey = "bad_public_key", 422, Failed, Lasting,
        "ssh cannot read the public key of the job, so no login would work",
        "create the record again from the `.pub` file";
    NoShellPort = "no_shell_port", 500, Failed, Lasting,
        "all ports for shells are in use",
        "`ports` in `[shell]`";
    NoShell = "no_shell", 404, Failed, Lasting,
        "the job has no shell, or its shell is closed",
        "`kiln jobs logs`";
    ShellFailed = "shell_failed", 500, Failed, Lasting,
        "the user of a shell marked the changes as failed",
        "`kiln jobs logs`";
    ShellTimeout = "shell_timeout", 500, Failed, Lasting,
        "a shell was not used for twelve hours, or was open for seven days (`idle`, `longest` in `[shell]`)",
        "`kiln jobs complete` keeps the changes";
    HeartbeatLost = "heartbeat_lost", 500, Failed, Killed,
        "the agent was silent for a minute (`heartbeat` in `[watch]`); retried",
        "check whether the host is overloaded";
    Silent = "silent", 500, Failed, OfTwins,
        "the job made no progress for an hour (ten hours if emulated): neither a step nor a new line (`silence`)",
        "the end of the log shows the program that hangs";
    WallLimit = "wall_limit", 500, Failed, Lasting,
        "a job took more than four hours (forty if emulated; `wall`, `emulated_factor`)",
        "raise the limit, or find the slow step: `kiln jobs status`";
    Interrupted = "interrupted", 500, Interrupted, Lasting,
        "Ctrl-C, SIGTERM or SIGHUP; in a record also: the build was killed",
        "start it again";

    ["Kernel, initrd and squashfs", ""]
    KernelMissing = "kernel_missing", 422, Failed, Lasting,
        "`--kernel-file-name` was given and the root has no kernel",
        "install a kernel package; without the option, the image has no kernel";
    KernelWrongArch = "kernel_wrong_arch", 422, Failed, Lasting,
        "the kernel is for another architecture than the image",
        "check the architecture of the repositories";
    KernelInvalid = "kernel_invalid", 422, Failed, Lasting,
        "the file is not a kernel that boot loaders of the architecture accept",
        "name another with `--kernel-file-name`";
    InitrdMissing = "initrd_missing", 422, Failed, Lasting,
        "the root has a kernel but no initrd for it",
        "run dracut in `config.sh`, or name it with `--initrd-file-name`";
    InitrdMismatch = "initrd_mismatch", 422, Failed, Lasting,
        "the only initrd of the root, or the one that the job names, is for another version than the kernel",
        "run dracut for that kernel in `config.sh`, or name kernel and initrd of one version";
    SquashfsFailed = "squashfs_failed", 500, Failed, Lasting,
        "mksquashfs failed",
        "the message is the last line of its output";

    SigningFailed = "signing_failed", 503, Failed, PassingStorage,
        "the provenance of an image cannot be signed: the command of `[signing]` fails, takes more than a minute, or gives \
         a signature that the public key does not confirm",
        "run the command by hand; the job waits a while for a signer that is away, and then fails";

    ["Checks of a finished root", "Before a root is packed, Kiln looks at it as a node would. A finding fails the job (`fail`), is a \
     warning in its log with the code of the check (`warn`), or is nothing (`off`). `[root_checks]` of the configuration chooses, \
     and so does `[checks]` in a file `kiln-recipe.toml` of the recipe, which has a line such as `root_setuid = \"off\"` for each check; \
     what is `fail` for the site cannot be changed by a recipe. The level where nobody chooses is in front of each row."]
    RootLoader = "root_loader", 422, Failed, Lasting,
        "`fail`: the root does not have the program loader that `/bin/sh` or the first process names, so nothing starts on a node",
        "look for what replaces `/lib`, `/lib64` or `/usr/lib` in scripts and archives";
    RootModes = "root_modes", 422, Failed, Lasting,
        "`warn`: not everybody can enter `/`, `/etc`, `/usr` or `/var`, or everybody can write there; `/tmp` has not the mode 1777",
        "`chmod` in `config.sh`";
    RootDevices = "root_devices", 422, Failed, Lasting,
        "`warn`: `/dev` has regular files, such as a `/dev/null` that a script made",
        "remove them in the script";
    RootLinks = "root_links", 422, Failed, Lasting,
        "`warn`: a directory has taken the place of a link of the distribution (`/lib`, `/sbin`, `/var/run`)",
        "put its content to where the link led, and make the link again";
    RootModules = "root_modules", 422, Failed, Lasting,
        "`warn`: modules without a kernel, a kernel without its modules, or a module for another kernel in their directory",
        "install kernel and modules of one version";
    RootInitrd = "root_initrd", 422, Failed, Lasting,
        "`warn`: the initrd has modules of the kernel, and lacks some that mount the image's squashfs on a node (`squashfs`, `overlay`, \
         `loop`), which are not built into the kernel either",
        "`add_drivers+=\" overlay squashfs loop \"` in dracut's configuration; `off` for an image that nodes boot in another way";
    RootInitrdUnread = "root_initrd_unread", 422, Failed, Lasting,
        "`warn`: the initrd cannot be read, or what is built into the kernel is not known, so nobody knows whether it has these modules",
        "have dracut pack the initrd with zstd, gzip or xz";
    RootAccounts = "root_accounts", 422, Failed, Lasting,
        "`warn`: an account or a group has an id that the sandbox does not have, so no file of the image can belong to it",
        "use an id that it has";
    RootPackages = "root_packages", 422, Failed, Lasting,
        "`warn`: dpkg has not installed a package completely, or a script of an rpm has failed",
        "the log of its installation says why";
    RootSetuid = "root_setuid", 422, Failed, Lasting,
        "`warn`: a program that no package owns runs with the rights of its owner or group",
        "`chmod u-s,g-s`, unless it is meant so";
    RootAttributes = "root_attributes", 422, Failed, Lasting,
        "`warn`: files have access control lists, which a squashfs cannot have; their groups keep their own rights",
        "set the lists when a node starts";
    RootIdentity = "root_identity", 422, Failed, Lasting,
        "`warn`: ids and keys that all machines with the image would share are removed, and the log says which; those of the \
         recipe are kept, with a warning. `off` keeps all",
        "let each machine make its own";

    ["Warnings", "The log has each with its code, and so has the job's record: `kiln jobs status` shows it (`warnings`), `kiln build` at its \
     end, and the page of the job. Checks of a finished root and some failures are warnings, too, where the job goes on without."]
    RecipeDescription = "recipe_description", 422, Failed, Lasting,
        "a part of the description is of no use: an included file is no `image`, or kiwi's conversion of an old schema says so",
        "the message names it";
    RecipeAttributes = "recipe_attributes", 422, Failed, Lasting,
        "files of the recipe's archive have access control lists, labels of SELinux or extended attributes that an image cannot have; \
         their groups keep their own rights",
        "set them when a node starts";
    RecipePaths = "recipe_paths", 422, Failed, Lasting,
        "a path that the recipe brings is of no use where it lands: below `/run`, which nodes mount empty; below a mount of the sandbox; \
         in the place of another one; or readable for root alone, as in a checkout made with the umask 077",
        "the message names the paths";
    RecipeValues = "recipe_values", 422, Failed, Lasting,
        "values were given that the recipe does not ask for: it has no list of templates, or its Containerfile no such `ARG`",
        "write the list or the `ARG`, or leave the values out";
    ScriptMark = "script_mark", 422, Failed, Lasting,
        "a script begins with a byte order mark, so a shell runs it, whatever its first line says",
        "save it without the mark";
    ScriptNotRun = "script_not_run", 422, Failed, Lasting,
        "the recipe has a script that kiwi runs for disks, live images and overlays, which Kiln does not make of a root",
        "move what the root needs into `config.sh` or `images.sh`";
    ObsoleteFunction = "obsolete_function", 422, Failed, Lasting,
        "scripts call functions of kiwi that are obsolete; they do nothing",
        "remove the calls";
    ImageTypeNotMade = "image_type_not_made", 422, Failed, Lasting,
        "kiwi finds a fault in the description of a disk, a live image or a container, which Kiln does not make of the root",
        "the message says what; the root and its image are not concerned";
    KernelReleaseUntold = "kernel_release_untold", 500, Failed, Lasting,
        "scripts see the builder's kernel by `uname -r`, and not the image's",
        "ask the image's directory `/lib/modules` for the release; the message says why";
    ProgramsLeft = "programs_left", 422, Failed, Lasting,
        "a script, or the installation of a package, has left programs running; they are ended",
        "end them in the script";
    NamesMissing = "names_missing", 422, Failed, Lasting,
        "the file of name servers cannot be put into the root, so that programs of the root find no names of hosts",
        "the message says why";
    RepoPriorities = "repo_priorities", 422, Failed, Lasting,
        "repositories of one host have different priorities, which apt knows by the host alone",
        "name them by different names of the host";
    AuthoritiesNotKept = "authorities_not_kept", 422, Failed, Lasting,
        "`keep_ca` in `[trust]` is set, but the image has no place for the site's authorities, or its tool did not take them up",
        "install the package `ca-certificates`, or its like, in the recipe";
    LimitsPartial = "limits_partial", 500, Failed, Lasting,
        "the place where the job ran could not give its sandbox all limits that were asked for",
        "the message says which; `kiln doctor` says what the host lacks";
    FutureFiles = "future_files", 422, Failed, Lasting,
        "files of a reproducible image are newer than the machine's clock",
        "look for `touch` in scripts, and at the clock";
    PackagesUnrecorded = "packages_unrecorded", 500, Failed, Lasting,
        "the packages of the root are not recorded, or not all of them: later comparisons and the image's documents lack them",
        "the message says why";
    ProgramsUnrecorded = "programs_unrecorded", 500, Failed, Lasting,
        "it is not recorded why each program was run natively or emulated",
        "the message says why";
    CrashesUnwatched = "crashes_unwatched", 500, Failed, Lasting,
        "programs of the image that die by a signal under emulation go unnoticed",
        "the message says what the sandbox does not allow";
    LayerNotKept = "layer_not_kept", 500, Failed, Lasting,
        "the root after all packages is not kept for later jobs",
        "nothing: they install the packages themselves";

    ["The sandbox", ""]
    NoUserNamespace = "no_user_namespace", 500, Failed, Lasting,
        "the host does not allow this user to create user namespaces",
        "the hint names the sysctl to change";
    NoSubids = "no_subids", 500, Failed, Lasting,
        "the user has no range of 65536 subordinate ids",
        "`sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER`";
    NoNewuidmap = "no_newuidmap", 500, Failed, Lasting,
        "`newuidmap` or `newgidmap` is not installed",
        "install `uidmap` (Debian) or `shadow` (SUSE, Red Hat)";
    IdMapRefused = "id_map_refused", 500, Failed, Lasting,
        "`newuidmap` or `newgidmap` refused the range",
        "compare `/etc/subuid` and `/etc/subgid` with the user's name";
    SandboxMount = "sandbox_mount", 500, Failed, Lasting,
        "the kernel refused a mount in the sandbox",
        "inside containers, unmask `/proc`; overlay needs Linux 5.11; otherwise a security module may be the cause: \
         see the kernel log";
    SandboxRoot = "sandbox_root", 500, Failed, Lasting,
        "the sandbox's root cannot be entered",
        "as above";
    SandboxStart = "sandbox_start", 500, Failed, OfThePlace,
        "another step of starting a sandbox failed, or a program could not be started there",
        "the message names the call or the program";
    SandboxLost = "sandbox_lost", 500, Failed, Killed,
        "the agent or the supervisor ended without giving a reason",
        "it was killed: see the kernel log";
    SandboxExists = "sandbox_exists", 409, Failed, Lasting,
        "the job already has a sandbox",
        "a defect of Kiln: report it";
    SandboxStuck = "sandbox_stuck", 500, Failed, Lasting,
        "a process of a sandbox cannot be killed",
        "it waits for the kernel, perhaps for a disk: see the kernel log";
    SandboxDisk = "sandbox_disk", 500, Failed, Lasting,
        "the disk space of a sandbox cannot be mounted",
        "check that there are free loop devices (`losetup --list`)";
    NoScratch = "no_scratch", 409, Failed, Lasting,
        "a job cannot resume with the disk space of another: it is gone, was not unmounted by its virtual machine, or \
         is of the other kind (with or without a machine); or a Kata machine cannot make its disk space",
        "start the job from the beginning; a guest kernel needs loop devices and ext4";
    PlaceSilent = "place_silent", 503, Failed, PassingKilled,
        "a place where jobs run has not answered for some seconds",
        "see whether its host, engine or cluster is overloaded or cut off. Jobs wait for it; those elsewhere go on";
    EngineGone = "engine_gone", 503, Failed, PassingKilled,
        "a container engine does not answer, or cannot be reached through SSH",
        "check that it is running (`docker version`), and its address. Jobs wait for it";
    EngineRefused = "engine_refused", 500, Failed, OfThePlace,
        "a container engine refused a request",
        "the message is from the engine";
    EngineAddress = "engine_address", 500, Failed, Lasting,
        "the address of a container engine is invalid",
        "`unix:///var/run/docker.sock`, `tcp://host:2376` or `ssh://user@host`";
    EngineArch = "engine_arch", 500, Failed, Lasting,
        "a container engine runs on an architecture without a toolbox",
        "use x86_64, aarch64, ppc64le, s390x or riscv64";
    ImageMissing = "image_missing", 500, Failed, OfThePlace,
        "the toolbox's image was removed from the engine just as a job started, or a node of the cluster cannot get it",
        "on an engine, the next attempt restores it. In a cluster, the message names the image: \
         `kiln toolbox push` puts it into the registry of `image` in `[kubernetes]`, or into S3 where `base_image` is set";
    RuntimeUnknown = "runtime_unknown", 500, Failed, OfThePlace,
        "a container engine does not have the configured runtime, or a cluster has no such RuntimeClass",
        "`docker info` lists them; kata/docker-daemon.json has the lines for `daemon.json`, as kata/README.md shows. In a \
         cluster: `kubectl get runtimeclasses`";
    ClusterGone = "cluster_gone", 503, Failed, PassingKilled,
        "the API of the Kubernetes cluster does not answer",
        "check `kubectl version`, and `kubeconfig` and `context` in `[kubernetes]`. Jobs wait for it";
    NodesAway = "nodes_away", 503, Failed, PassingPlace,
        "the cluster has nodes for a job, and none of them is ready: they are silent, restarted, or cordoned off",
        "`kubectl get nodes`. Jobs wait for one";
    ClusterRefused = "cluster_refused", 500, Failed, Lasting,
        "the API of the Kubernetes cluster refused a request",
        "the message is from the cluster; `kiln doctor` says which rights are missing";
    ClusterUnsafe = "cluster_unsafe", 500, Failed, Lasting,
        "the API server dropped fields of a job's pod without which it would not be isolated; the pod was deleted",
        "the message names the fields: the cluster is too old for them, or an admission webhook changes pods";
    PodWaits = "pod_waits", 500, Failed, OfThePlace,
        "a job's pod was not started in time (`start` in `[kubernetes]`); retried",
        "the message is from the cluster: the scheduler, a quota or a node";
    PodEvicted = "pod_evicted", 500, Failed, Killed,
        "a node evicted a job's pod, or the pod was deleted; retried",
        "the message is from the cluster. A node evicts pods when its disk or memory runs out";
    NodeLost = "node_lost", 500, Failed, Killed,
        "the node of a job's pod does not answer any more; retried elsewhere",
        "`kubectl get nodes`";
    ToolboxImage = "toolbox_image", 500, Failed, Lasting,
        "the toolbox cannot be packed for a container engine or a cluster",
        "the message gives the reason; `tar` and `awk` must be installed";
    ToolboxFetch = "toolbox_fetch", 500, Failed, OfStorage,
        "a pod cannot fetch its toolbox from S3, or not unpack it; retried",
        "the message has the cause. `kiln toolbox push --again` stores the toolbox anew";
    AgentUnreachable = "agent_unreachable", 500, Failed, OfThePlace,
        "the agent of a sandbox has not reached the server at all; the message has the cause, such as that of TLS; \
         retried",
        "`agent_url` in `[server]` must lead from there to this server, and its certificate must name that host and be \
         issued by an authority in `agent_ca_bundle`. The server tries the address when it starts, and says so in its log";
    AgentOffline = "agent_offline", 500, Failed, OfThePlace,
        "the sandbox has no network: no route leads from its agent to the server; retried",
        "see whether the place gives its sandboxes a network: Docker 26 and newer do in Kata machines from Kata 3.29 on only, and \
         the server's address must not be in a network that the place refuses";
    NoServerUrl = "no_server_url", 500, Failed, Lasting,
        "a sandbox on another host, in a cluster or in a Kata machine cannot reach the server",
        "set `agent_url` in `[server]`";
    HostUnfit = "host_unfit", 500, Failed, Lasting,
        "`kiln doctor` found that a requirement of every job is not met",
        "the lines above it name each one, with the next command";
    NoNetwork = "no_network", 500, Failed, Lasting,
        "slirp4netns is not installed or cannot set up the network of a sandbox, or a host in `[network]` has no \
         address",
        "install `slirp4netns`; the user that Kiln runs as must be able to open `/dev/net/tun`";
    NetworkLost = "network_lost", 500, Failed, Killed,
        "slirp4netns ended while a sandbox ran",
        "it was killed: see the kernel log";
    NoDoor = "no_door", 500, Failed, Lasting,
        "Kiln cannot listen on a port that it relays for sandboxes",
        "the message names it";
    VmLost = "vm_lost", 500, Failed, Killed,
        "a virtual machine ended before its agent did",
        "the message ends with the last output of its kernel and of QEMU; `oom_kills` above 0 means that the host \
         killed QEMU because it ran out of memory";
    VmBoot = "vm_boot", 500, Failed, Lasting,
        "the test of a virtual machine did not boot in time",
        "with `/dev/kvm`: this host's CPU cannot run guests, and emulation is used. Without: the host is overloaded";
    VmKernel = "vm_kernel", 500, Failed, Lasting,
        "the kernel beside the toolbox lacks a module that virtual machines need, or cannot be read",
        "remove the toolbox and run `kiln toolbox build`";
    VmDevice = "vm_device", 500, Failed, Lasting,
        "a virtual machine does not find a disk, a port or its network card",
        "the message names it; check that the toolbox and `kiln` have the same version";
    VmNetwork = "vm_network", 500, Failed, Lasting,
        "a virtual machine cannot have the host's network",
        "a defect of Kiln: report it";
    CgroupUnavailable = "cgroup_unavailable", 500, Failed, Lasting,
        "this user cannot create control groups",
        "only a warning: the build runs without limits";
    Protocol = "protocol", 400, Failed, Lasting,
        "`kiln-agent` and `kiln` do not understand each other",
        "a defect of Kiln, unless `kiln-agent` is of another version: `make build` builds both";
    AgentUnknown = "agent_unknown", 401, Failed, Lasting,
        "an agent names an unknown job, or presents a token other than the job's",
        "nothing: only agents see it, and they exit";
    JobOver = "job_over", 410, Failed, Lasting,
        "an agent calls after the end of its job",
        "as above";
    AgentMismatch = "agent_mismatch", 500, Failed, Lasting,
        "`kiln` and `kiln-agent` were not built together",
        "`make build` builds both";
    AgentPanic = "agent_panic", 500, Failed, OfThePlace,
        "a defect of the agent",
        "a defect of Kiln: report it, with the log";
    NoAgent = "no_agent", 500, Failed, Lasting,
        "`kiln-agent` is not beside `kiln`",
        "run `make build`, or set `KILN_AGENT`";
    AgentNotStatic = "agent_not_static", 500, Failed, Lasting,
        "`kiln-agent` is not statically linked",
        "`make build` builds a static one; `cargo build` does not";
    NotLookedAt = "not_looked_at", 503, Failed, PassingPlace,
        "a place has not been checked yet",
        "nothing: jobs wait for the check";
    ProgramMissing = "program_missing", 500, Failed, OfThePlace,
        "a program that a sandbox needs is not installed",
        "the message names the program, and the hint its package";

    ["Emulation", ""]
    BinfmtUnavailable = "binfmt_unavailable", 500, Failed, Lasting,
        "`binfmt_misc` cannot be mounted in the sandbox",
        "run `modprobe binfmt_misc` once; Linux 6.7 or newer is required";
    BinfmtRefused = "binfmt_refused", 500, Failed, Lasting,
        "the kernel refuses the `binfmt_misc` entry",
        "the message gives the kernel's reason";
    BinfmtTable = "binfmt_table", 500, Failed, Lasting,
        "`qemu/binfmt.toml` is invalid or lacks the architecture",
        "compare it with the original file";
    TwinsTable = "twins_table", 500, Failed, Lasting,
        "`qemu/twins.toml` is invalid",
        "compare it with the original file";
    NoTwins = "no_twins", 500, Failed, Lasting,
        "host and target have different byte orders, so no program of one can replace one of the other",
        "nothing: everything is emulated";
    EmulatorMissing = "emulator_missing", 500, Failed, Lasting,
        "the toolbox lacks the emulator",
        "`qemu/binfmt.toml` and `kata/toolbox/toolbox.toml` must agree";
    EmulatorBroken = "emulator_broken", 500, Failed, Lasting,
        "a small test program of the foreign architecture fails",
        "use another version of qemu in the toolbox";
    TwinsJoin = "twins_join", 500, Failed, Lasting,
        "`kiln-exec` is not beside the agent, or cannot be joined with the emulator. Only a warning in the log: \
         everything is emulated",
        "`make build`; on hosts other than x86_64 and aarch64 there are no twins";

    ["The toolbox", ""]
    NoToolbox = "no_toolbox", 500, Failed, Lasting,
        "no toolbox was built from this version's definition; a toolbox for a foreign architecture also needs that of \
         this host, for the emulator",
        "`kiln toolbox build`";
    NoSandbox = "no_sandbox", 404, Failed, Lasting,
        "the sandbox of the job was not kept",
        "`kiln sandboxes list` shows all kept ones";
    NoMirror = "no_mirror", 500, Failed, Lasting,
        "the host's apt configuration names no usable mirror",
        "`kiln toolbox build --mirror URL`";
    ToolboxBuild = "toolbox_build", 500, Failed, Lasting,
        "mmdebstrap or mksquashfs failed",
        "`kiln toolbox build --verbose` shows the whole output";
    ToolboxPin = "toolbox_pin", 500, Failed, Lasting,
        "the mirror has a version other than the tested one",
        "use a mirror of that Debian release, or change `pins` and test the result \
         ([kata/toolbox](../kata/toolbox/README.md))";
    ToolboxDefinition = "toolbox_definition", 500, Failed, Lasting,
        "`kata/toolbox/toolbox.toml` is invalid",
        "the message gives line and column";
    ToolboxFacts = "toolbox_facts", 500, Failed, Lasting,
        "the record of a new toolbox cannot be written, or an archive is not that of the toolbox that it claims to be",
        "export the toolbox again, with the same version of Kiln; otherwise report the defect";
    ToolboxArchive = "toolbox_archive", 500, Failed, Lasting,
        "the archive for `kiln toolbox import` does not have the given digest, or has entries that no toolbox has",
        "compare it with what `kiln toolbox export` printed, and copy it again";
    ToolboxLock = "toolbox_lock", 500, Failed, Lasting,
        "waiting for another process that builds the toolbox failed",
        "try again";
    ToolboxLost = "toolbox_lost", 500, Failed, Lasting,
        "the toolbox vanished during its installation",
        "look for another writer to the data directory";

    ["Artifacts and S3", ""]
    S3Unreachable = "s3_unreachable", 502, Failed, PassingStorage,
        "the connection cannot be made, or broke, or the certificate is not trusted",
        "check `s3.endpoint`; put a private authority into `s3.ca_bundle`";
    S3Timeout = "s3_timeout", 504, Failed, PassingStorage,
        "S3 does not answer in time",
        "check whether the service is overloaded, then try again";
    S3Denied = "s3_denied", 502, Failed, Lasting,
        "the keys are wrong or lack the permission, or the clocks differ",
        "check the keys, their permissions on both buckets, and this machine's clock";
    S3Region = "s3_region", 502, Failed, Lasting,
        "the bucket is in another region",
        "set `s3.region`";
    S3NoBucket = "s3_no_bucket", 502, Failed, Lasting,
        "the bucket does not exist any more",
        "create it, or name another";
    S3Full = "s3_full", 507, Failed, Lasting,
        "the service, or the disk of the embedded one, has no free space",
        "free some space, or raise the quota";
    S3Missing = "s3_missing", 409, Failed, OfStorage,
        "an object or an upload does not exist any more",
        "look for another user that deletes in the bucket";
    S3Unavailable = "s3_unavailable", 503, Failed, PassingStorage,
        "S3 is temporarily unavailable: status 408, 429, 500, 502 to 504, or a code such as `SlowDown`",
        "check the service, then try again";
    S3Error = "s3_error", 502, Failed, OfStorage,
        "S3 refused for another reason, which waiting does not resolve",
        "the message is from S3";
    S3Settings = "s3_settings", 500, Failed, Lasting,
        "the `[s3]` section is invalid: only one of the two keys, an unreadable `ca_bundle`, or an invalid address",
        "correct it";
    S3Configured = "s3_configured", 500, Failed, Lasting,
        "`kiln artifacts serve` was called, but `[s3]` names a service",
        "use that service's address";
    S3Embedded = "s3_embedded", 500, Failed, Lasting,
        "the embedded service does not start",
        "the message gives the reason: a port in use, a directory that cannot be written, or data of a newer Kiln";
    S3EmbeddedAddress = "s3_embedded_address", 500, Failed, Lasting,
        "the address of the embedded service is in use, or is not a loopback address",
        "use another port, or 0";
    UploadFailed = "upload_failed", 502, Failed, OfStorage,
        "S3 refused a part six times, or permanently",
        "check that the sandbox reaches `s3.public_endpoint`";
    UploadInvalid = "upload_invalid", 400, Failed, Lasting,
        "the sent parts do not match the announced ones",
        "a defect of Kiln: report it, with the log";
    ArtifactMismatch = "artifact_mismatch", 502, Failed, OfStorage,
        "an object in S3 differs from the sent one, or changed before the manifest was written",
        "build again; if it fails again, look for another writer, and check the disks of S3";
    ManifestInvalid = "manifest_invalid", 422, Failed, Lasting,
        "a manifest does not have exactly one root file system, is 1 MiB or larger, or does not match the objects in \
         S3",
        "correct the manifest given to `images create --from`; if Kiln wrote it, report the defect";
    NoImage = "no_image", 404, Failed, Lasting,
        "S3 has no object of the image",
        "`kiln artifacts list`";
    CaBundleInvalid = "ca_bundle_invalid", 500, Failed, Lasting,
        "the host's certificate bundle is not a PEM file of certificates",
        "repair it: `update-ca-certificates`";
    UploadBroken = "upload_broken", 400, Failed, Lasting,
        "an upload was interrupted, or ended before the announced size",
        "send it again";
    UploadTooLarge = "upload_too_large", 413, Refused, Lasting,
        "an upload is larger than the server accepts",
        "`upload_bytes` in `[limits]`";
    UploadUnwanted = "upload_unwanted", 409, Failed, Lasting,
        "the record of the upload was deleted or changed in the meantime",
        "check the record, then upload again";

    ["The server", ""]
    CannotListen = "cannot_listen", 500, Failed, Lasting,
        "an address of `[server] listen` is in use, or does not belong to this host",
        "stop the other program, or use another address";
    AlreadyServed = "already_served", 500, Failed, Lasting,
        "another `kiln serve` uses the data directory",
        "use one data directory for each server";
    WebhookUndelivered = "webhook_undelivered", 502, Failed, Lasting,
        "the receiver of a webhook did not take a test",
        "the message gives the reason; [webhooks.md](webhooks.md) says what a receiver has to do";
    OidcSettings = "oidc_settings", 500, Failed, Lasting,
        "`[oidc]` is invalid: it has no audience, or its authorities cannot be read",
        "the message gives the reason";
    NoToken = "no_token", 404, Failed, Lasting,
        "the token to delete does not exist",
        "`kiln tokens list`";
    Expiry = "expiry", 422, Failed, Lasting,
        "`--expires` is thousands of years away",
        "leave it out";

    ["Commands against a server", ""]
    Usage = "usage", 400, Refused, Lasting,
        "the options contradict each other, or change nothing",
        "the message names them";
    Refused = "refused", 400, Refused, Lasting,
        "the server refused the request",
        "the message is from the server";
    Unauthorized = "unauthorized", 401, Refused, Lasting,
        "the server needs a token, and got none or an invalid one",
        "`kiln login`";
    Forbidden = "forbidden", 403, Refused, Lasting,
        "the role of the token does not allow the request",
        "ask for a token with a higher role";
    NotFound = "not_found", 404, Refused, Lasting,
        "the record does not exist, or the server lacks the function",
        "`… list`; uploads need a Kiln server";
    ServerError = "server_error", 500, Refused, PassingKilled,
        "the server, or a service that it uses, failed",
        "see the log of the server";
    ServerAddress = "server_address", 400, Refused, Lasting,
        "the address is invalid, or contains a user name or password",
        "`https://kiln.example.org`";
    ServerUnreachable = "server_unreachable", 502, Failed, PassingKilled,
        "the server does not answer, or its certificate is not trusted",
        "check that it is running; `--ca-file` adds a private authority";
    ServerTimeout = "server_timeout", 504, Failed, PassingKilled,
        "the server did not answer in time",
        "check whether the request took effect before repeating it";
    ServerLost = "server_lost", 502, Failed, PassingKilled,
        "the server of a command or of a job stopped answering",
        "check whether a request took effect before repeating it; jobs are retried";
    JobFailed = "job_failed", 500, Failed, Lasting,
        "the job of `jobs create --follow`, or one of `demo`, ended without an image; cause and hint are those of the job, \
         and `jobs status` shows its own code",
        "`kiln jobs logs ID`";
    ServerUnknown = "server_unknown", 500, Failed, Lasting,
        "the server is neither Kiln nor IMS",
        "check the address; behind a gateway, IMS is below `/apis/ims`";
    RecordUnknown = "record_unknown", 404, Refused, Lasting,
        "no record has the name or the beginning of an id",
        "use an id from the list";
    RecordAmbiguous = "record_ambiguous", 400, Refused, Lasting,
        "several records have the name or the beginning of an id",
        "use an id from the message";
    TokenMissing = "token_missing", 500, Failed, Lasting,
        "`kiln login` got no token",
        "`--token-stdin`, or `--token FILE`";
    TokenUnreadable = "token_unreadable", 500, Failed, Lasting,
        "the token file cannot be read, or contains no token",
        "use the token alone, or JSON with `access_token`";
    TokenInvalid = "token_invalid", 500, Failed, Lasting,
        "the token contains invalid characters",
        "use one line of letters, digits and punctuation";
    TokenInsecure = "token_insecure", 500, Failed, Lasting,
        "the token would cross a network without TLS",
        "use `https://`";
    CaFileInvalid = "ca_file_invalid", 500, Failed, Lasting,
        "the authorities of `--ca-file` cannot be used",
        "use a PEM file of certificates";
    TlsUnusable = "tls_unusable", 500, Failed, Lasting,
        "the host's own authorities cannot be used",
        "use `--ca-file` with a PEM file of certificates";
    CredentialsUnreadable = "credentials_unreadable", 500, Failed, Lasting,
        "the file of `kiln login` cannot be read",
        "set its mode to 0600, or log in again";
    CredentialsUnwritable = "credentials_unwritable", 500, Failed, Lasting,
        "`kiln login` cannot store the token",
        "make the directory writable";
    NotLoggedIn = "not_logged_in", 500, Failed, Lasting,
        "there is no login to remove",
        "nothing";
    CrayConfiguration = "cray_configuration", 500, Failed, Lasting,
        "`--configuration` does not name a configuration of `cray` with a `core.hostname`",
        "`--server URL`";
    PublicKeyUnreadable = "public_key_unreadable", 422, Failed, Lasting,
        "the file does not exist, or contains a private key",
        "use the file that ends in `.pub`";
    UploadUnreadable = "upload_unreadable", 500, Failed, Lasting,
        "the file to upload does not exist, or cannot be read",
        "the message names the file";
    ImageFiles = "image_files", 500, Failed, Lasting,
        "the directory has no root file system, or several files match",
        "[cli.md](cli.md) lists the file names";
    PathMissing = "path_missing", 404, Failed, Lasting,
        "`kiln images files`: the image's root has no such path, or a link on the way leads nowhere",
        "`kiln images files IMAGE DIRECTORY` lists what is there";
    RootUnreadable = "root_unreadable", 422, Failed, Lasting,
        "`kiln images files`: the image has no root, its squashfs is damaged or has a compressor that Kiln does not read, or \
         the object changed while it was read",
        "`kiln verify IMAGE` says whether the objects are what the builder made";
    RunFailed = "run_failed", 500, Failed, Lasting,
        "`kiln schedules run-now` created no job",
        "the message gives the reason; `kiln schedules describe` shows the schedule's settings";
    Format = "format", 500, Failed, Lasting,
        "an answer cannot be written in that format",
        "use another `--format`, and report the defect";

    ["Booting images", ""]
    NotBootable = "not_bootable", 422, Failed, Lasting,
        "the image has no kernel or no initrd, so that no machine can boot it",
        "build it from a recipe with a kernel package and an initrd in `/boot`; `kiln images describe` and the log of the \
         job tell what was found";
    ArchUnclear = "arch_unclear", 422, Failed, Lasting,
        "the directory does not say for which architecture its image is",
        "`--arch ARCH`";
    NoEmulator = "no_emulator", 500, Failed, Lasting,
        "QEMU's system emulator for the image's architecture is not installed below `/usr`",
        "install the package that the hint names";
    BootFailed = "boot_failed", 500, Failed, Lasting,
        "`kiln check boot`: the kernel panicked, the root file system was not found, the boot ended in an emergency shell, or \
         the machine ended",
        "the message names the cause, and the console is kept in the file that the command prints";
    BootTimeout = "boot_timeout", 500, Failed, Lasting,
        "`kiln check boot`: the sign of `--until` did not appear within `--timeout`",
        "`--timeout`, `--until`; an emulated CPU takes 20 to 60 times as long";
    DiskUnsupported = "disk_unsupported", 422, Failed, Lasting,
        "no disk image can be made of the image: its architecture does not boot by UEFI, its initrd cannot boot a squashfs from \
         a disk, or its boot files are too large",
        "boot it over the network, or follow the hint";
    DiskToolMissing = "disk_tool_missing", 500, Failed, Lasting,
        "a program for disk images, or GRUB for the image's architecture, is not installed",
        "install the package that the hint names";
    DiskExists = "disk_exists", 409, Failed, Lasting,
        "the file for the disk image, or for the content of an image's file, exists already",
        "name another file, or remove this one";
    GlanceLogin = "glance_login", 500, Failed, Lasting,
        "the OS_ variables do not describe a login to OpenStack, or its catalogue has no image service",
        "`source openrc`; or OS_AUTH_TYPE=none and OS_IMAGE_URL for a Glance without logins";
    GlanceUnreachable = "glance_unreachable", 502, Failed, Lasting,
        "Keystone or Glance does not answer, not in time, or with an error of its own",
        "repair the service, then publish again";
    GlanceDenied = "glance_denied", 403, Failed, Lasting,
        "Keystone or Glance refuses the login, or the user may not do this (401, 403)",
        "check the OS_ variables and the roles of the user";
    GlanceQuota = "glance_quota", 413, Failed, Lasting,
        "the image is larger than Glance, or the quota of the user, allows; it was removed again",
        "remove images, or have the quota raised";
    GlanceRefused = "glance_refused", 500, Failed, Lasting,
        "Keystone or Glance refuses a request, or does not answer like one of OpenStack's services",
        "the message is the service's own";
    GlanceMismatch = "glance_mismatch", 502, Failed, Lasting,
        "after the upload Glance's digest is not that of the disk image, or the image is not active; it was removed again",
        "see Glance's log, then publish again";

    ["Moving from and to IMS", ""]
    NotImsData = "not_ims_data", 500, Failed, Lasting,
        "the path contains no file of an IMS",
        "name a copy of the service's `/var/ims/data`, or what CSM's `export_ims_data.py` wrote";
    TransferIncomplete = "transfer_incomplete", 500, Failed, Lasting,
        "some records were left out; each is named with the reason, and all others were transferred",
        "correct the file and repeat: existing records stay unchanged";
    StoreUnavailable = "store_unavailable", 503, Failed, PassingStorage,
        "the database does not answer, or its disk is full",
        "repair the database, or delete jobs and images if the disk of Kiln's data directory is full; then repeat";
    StoreDamaged = "store_damaged", 500, Failed, Lasting,
        "a row of the database cannot be read",
        "repair the database, then repeat";
    StoreConflict = "store_conflict", 409, Failed, OfStorage,
        "a record was changed by another server or request at the same time",
        "read it again, and repeat the change if it is still needed";
    BackupExists = "backup_exists", 500, Failed, Lasting,
        "`kiln backup` or `kiln restore` would write over a file",
        "move the file away, or name another one; a restore wants a data directory without records";
    BackupInvalid = "backup_invalid", 500, Failed, Lasting,
        "the file is no backup by `kiln backup`, is damaged, or is that of a newer Kiln",
        "name another backup, or restore it with the version that made it";
    BackupElsewhere = "backup_elsewhere", 500, Failed, Lasting,
        "the records are in PostgreSQL",
        "`pg_dump` and `pg_restore`; [operating.md](operating.md#backups) has the commands";

    ["Registries", "[registries.md](registries.md) describes the commands. Where one of them fails, no tag was set or moved."]
    RegistryReference = "registry_reference", 422, Refused, Lasting,
        "the name of an image, or of a registry, is malformed",
        "`REGISTRY/NAME:TAG`, `REGISTRY/NAME@sha256:…` or `oci:DIR:TAG`";
    RegistryUnreachable = "registry_unreachable", 502, Failed, Lasting,
        "no connection to the registry can be made: its name, its port, its certificate, or it speaks no TLS",
        "`--ca FILE` names the authority of its certificate; `--insecure` uses plain HTTP";
    RegistryLost = "registry_lost", 502, Failed, Lasting,
        "connections to the registry broke again and again",
        "repeat the command: what the registry has is not sent again";
    RegistryTimeout = "registry_timeout", 504, Failed, Lasting,
        "the registry accepted or sent nothing for too long",
        "repeat the command: what the registry has is not sent again";
    RegistryUnauthorized = "registry_unauthorized", 401, Failed, Lasting,
        "the registry wants a login, or does not accept the stored one",
        "`kiln registry login REGISTRY`";
    RegistryDenied = "registry_denied", 403, Failed, Lasting,
        "the account at the registry lacks the right",
        "ask for the right to push to the repository, or to pull from it";
    RegistryMissing = "registry_missing", 404, Failed, Lasting,
        "the registry or layout has no such image, or an image in it lacks one of its parts",
        "`kiln inspect` shows what a name stands for";
    RegistryRefused = "registry_refused", 502, Failed, Lasting,
        "the registry refused a request",
        "the message is from the registry";
    RegistryBroken = "registry_broken", 502, Failed, Lasting,
        "the registry reports a fault of its own, more than once",
        "see the registry's log";
    RegistryBusy = "registry_busy", 429, Failed, Lasting,
        "the registry limits requests, and asks for more patience than the command has",
        "try again after the time in the hint";
    RegistryFull = "registry_full", 507, Failed, Lasting,
        "the registry has no room, or the account's quota is used up",
        "raise the quota, or delete images there";
    RegistryAnswer = "registry_answer", 502, Failed, Lasting,
        "an answer is too large or malformed, or contradicts the protocol",
        "check that the address is a registry's";
    RegistryRedirect = "registry_redirect", 502, Failed, Lasting,
        "the registry leads to an address that it should not: the loopback, a private network, plain HTTP",
        "[registries.md](registries.md#what-a-registry-cannot-do) has the rule";
    RegistryDigest = "registry_digest", 502, Failed, Lasting,
        "content has another digest or size than its name says",
        "repeat; if it fails again, the registry or a cache before it is damaged";
    RegistryMoved = "registry_moved", 409, Failed, Lasting,
        "another client gave the tag to another image in the meantime",
        "look at what has the tag now, and repeat if it is to be replaced";
    RegistryGraph = "registry_graph", 422, Failed, Lasting,
        "what belongs to an image is nested too deeply, or too much",
        "copy the images that the index names one by one, by their digests";
    RegistryLogin = "registry_login", 500, Failed, Lasting,
        "the stored logins cannot be read or written, or a credential helper of Docker's fails",
        "the message names the file or the helper";
    LayoutUnusable = "layout_unusable", 500, Failed, Lasting,
        "the directory is no OCI image layout, or cannot be read or written",
        "the message gives the reason";
    LayerUnmade = "layer_unmade", 500, Failed, Lasting,
        "an image's root cannot become a layer: `sqfs2tar` is missing or fails, the root is too large, or its programs \
         are of another architecture than the image",
        "install `squashfs-tools-ng`; `kiln images update --arch` corrects an architecture";
    MultiarchFailed = "multiarch_failed", 422, Failed, Lasting,
        "`kiln check multiarch` found a fault",
        "the table names each";

    NotVerified = "not_verified", 422, Failed, Lasting,
        "`kiln verify` found that an image, its provenance or its signature is not as its builder made it",
        "each line with `no` names an object and what is wrong with it; do not use the image";
    KeyUnusable = "key_unusable", 422, Failed, Lasting,
        "a key file is missing, or holds no key of Ed25519, P-256 or P-384",
        "`openssl pkey -in KEY -pubout` writes the public half of a private key";

    ["Configuration and the rest", ""]
    ConfigUnreadable = "config_unreadable", 500, Failed, Lasting,
        "the file given by `--config` or `KILN_CONFIG` cannot be read",
        "check the path";
    ConfigInvalid = "config_invalid", 500, Failed, Lasting,
        "the file is not TOML, has an unknown key, an invalid value or contradictory settings; or a `KILN__…` variable \
         does",
        "`kiln config check` shows every mistake with its line; [configuration.md](configuration.md) lists all keys";
    NoDataDir = "no_data_dir", 500, Failed, Lasting,
        "`HOME` is not set, and no data directory is given",
        "`--data-dir DIR`";
    Io = "io", 500, Failed, Lasting,
        "an operation of the operating system failed, without a more specific code",
        "the message gives the file and the reason";
    Unknown = "unknown", 500, Failed, Lasting,
        "a record was written by another version of Kiln, with a code that this version does not know",
        "cause and hint are from that version; see its manual";

    ["Schedules", "These failures appear in the server's log, and their cause in the history of the schedule."]
    ScheduleUnusable = "schedule_unusable", 422, Failed, Lasting,
        "the recipe does not exist any more, or the name of the image is invalid",
        "`kiln schedules update`";
    JobRefused = "job_refused", 422, Failed, Lasting,
        "the job was refused: the recipe has no archive, or the key does not exist any more",
        "correct the cause";

    ["Image sets", ""]
    SetIncomplete = "set_incomplete", 409, Refused, Lasting,
        "a set that is not complete cannot be published",
        "see what is missing with `kiln sets describe`; `kiln sets rebuild --failed` tries again";
    SetTimeLimit = "set_time_limit", 500, Failed, Lasting,
        "the job of an architecture took longer than its set allows (`time_limit_s`)",
        "allow more time, or look for the slow step in its log; `kiln sets rebuild --failed` tries again";
}
