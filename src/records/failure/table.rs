//! The table of failures: codes, conditions and advice. Pure: no I/O.

use super::row::codes;

codes! {
    ["The recipe", ""]
    RecipeMissing = "recipe_missing", 422, Failed, Lasting,
        "nothing is at the path given",
        "name a directory with a `config.xml`, or an archive of one";
    RecipeConfigMissing = "recipe_config_missing", 422, Failed, Lasting,
        "the recipe has no `config.xml` at its top (in an archive: nor one `*.kiwi` file)",
        "put it there; an archive may have one directory around everything";
    RecipeConfigInvalid = "recipe_config_invalid", 422, Failed, Lasting,
        "`config.xml` is no XML in UTF-8, has a DTD or entities, has another root element than `image`, or \
         kiwi's schema refuses it",
        "the cause has line and column, or the log says where it differs. After templates were rendered, the \
         file differs from yours: `--keep` leaves the rendered one in `scratch/recipe`";
    RecipeTooLarge = "recipe_too_large", 413, Failed, Lasting,
        "the archive has more than 1 GiB",
        "large files belong in packages";
    RecipeNotArchive = "recipe_not_archive", 422, Failed, Lasting,
        "the file is no tar archive in a compression that Kiln knows",
        "tar, plain or with gzip, bzip2, xz or zstd; no zip";
    RecipeDamaged = "recipe_damaged", 422, Failed, Lasting,
        "the archive breaks off",
        "make it again; `tar -tf` must list it to the end";
    RecipeUnsafe = "recipe_unsafe", 422, Failed, Lasting,
        "an entry has an absolute path or `..`, is a device, a fifo, or a link that leaves the recipe",
        "`tar -czf recipe.tgz -C DIRECTORY .`";
    RecipeBomb = "recipe_bomb", 422, Failed, Lasting,
        "the archive unpacks to more than 4 GiB, 200 000 entries, or 200 times its own size (beyond 64 MiB)",
        "leave generated files out";
    RecipeMismatch = "recipe_mismatch", 502, Failed, OfThePlace,
        "what the sandbox fetched is not what was put into S3",
        "build again; if it stays, look for another writer to the recipes bucket";
    RecipeUnreachable = "recipe_unreachable", 502, Failed, OfThePlace,
        "the sandbox cannot get the recipe from S3 in five tries",
        "check `s3.public_endpoint`: sandboxes use that address";
    UnknownRecipeType = "unknown_recipe_type", 422, Failed, Lasting,
        "`--type` is not `kiwi-ng`",
        "leave it out";
    UnknownArch = "unknown_arch", 422, Failed, Lasting,
        "`--arch` is none of x86_64, aarch64, ppc64le, s390x, riscv64 or their other names",
        "take one of the list in the message";

    ["Templates", ""]
    TemplateListInvalid = "template_list_invalid", 422, Failed, Lasting,
        "`.ims_recipe_template.yaml` is no YAML, or has no `template_files`",
        "`template_files: [config.xml]`";
    TemplateFileMissing = "template_file_missing", 422, Failed, Lasting,
        "a listed file is not there, or lies outside the recipe",
        "paths are relative to the recipe's directory";
    TemplateUndefined = "template_undefined", 422, Failed, Lasting,
        "a name has no value",
        "`--set NAME=VALUE`, or a `default` in the template; `--lenient-templates` makes it empty text";
    TemplateSyntax = "template_syntax", 422, Failed, Lasting,
        "a listed file is no Jinja2 template",
        "correct it at the line given, or take it off the list";
    TemplateFailed = "template_failed", 422, Failed, Lasting,
        "an expression fails, takes too long, or the result has more than 32 MiB",
        "correct it at the line given; all values are text";

    ["Building", ""]
    RepoUnreachable = "repo_unreachable", 500, Failed, Lasting,
        "a repository does not answer within `--repos-timeout` (500 s), refuses for a minute, or its name \
         cannot be resolved",
        "check the addresses in `config.xml`; the cause lists each with its answer";
    RepoSignature = "repo_signature", 500, Failed, Lasting,
        "a repository is not signed, or by a key that is not trusted",
        "name the key: `<signing key=\"file:///usr/share/keyrings/…\"/>`";
    RepoInconsistent = "repo_inconsistent", 500, Failed, Lasting,
        "a repository's files do not fit its index: it is just being published, or a cache on the way is stale",
        "build again";
    PackageNotFound = "package_not_found", 500, Failed, Lasting,
        "no repository has a package for this architecture",
        "check its name; the message is the package manager's";
    UnmetDependency = "unmet_dependency", 500, Failed, Lasting,
        "a package needs another that no repository of the recipe has",
        "add the repository, or take the package out; the message is the package manager's";
    ScriptletFailed = "scriptlet_failed", 500, Failed, Lasting,
        "a script of a package failed",
        "what it said stands before that line in the log";
    ScriptFailed = "script_failed", 500, Failed, Lasting,
        "`config.sh` or another script of the recipe failed",
        "what it said stands before that line in the log";
    EmulatorFault = "emulator_fault", 500, Failed, Lasting,
        "a program died under qemu by SIGSEGV, SIGILL, SIGBUS, SIGABRT, SIGTRAP, SIGFPE or SIGSYS, even if a \
         script went on; a native program that does so is its script's affair",
        "the message names program and signal, and the log has a line `emulator fault:` for each. Build \
         natively, or without that program, to tell its fault from qemu's";
    ExecFormat = "exec_format", 500, Failed, Lasting,
        "a program of another architecture than the image's was started in it",
        "see which package or script brought it";
    InitrdFailed = "initrd_failed", 500, Failed, Lasting,
        "dracut could not make the initrd",
        "check its configuration and modules in the recipe; the message is dracut's";
    BuildFailed = "build_failed", 500, Failed, Lasting,
        "kiwi failed for another reason",
        "the message is kiwi's last error, the log has everything before it";
    OutOfMemory = "out_of_memory", 500, Failed, Lasting,
        "the kernel killed a process of the build for want of memory",
        "`--memory SIZE`, fewer architectures at once, or a larger machine";
    DiskFull = "disk_full", 507, Failed, Lasting,
        "no space or no inodes are left, on the disk of the data directory",
        "free some, or move the data directory: `KILN_DATA_DIR`";
    ToolMissing = "tool_missing", 500, Failed, Lasting,
        "a program of the toolbox cannot be started",
        "`kiln toolbox build` after removing the toolbox; if it stays, the toolbox's description lacks a \
         package";
    NothingToResume = "nothing_to_resume", 409, Failed, Lasting,
        "a job is to go on from a step, and what earlier steps made is not there",
        "start it from the beginning";
    Cancelled = "cancelled", 409, Failed, Lasting,
        "the job was cancelled",
        "`kiln jobs retry`, if it is wanted after all";
    NoVm = "no_vm", 500, Failed, Lasting,
        "a job of the service needs a virtual machine (another architecture than the host's, or \
         `require_dkms`), and no place has one; the message says why at each",
        "`kiln doctor`; or `foreign = \"namespace\"` in `[isolation]`, where the recipes can be trusted with \
         the host's kernel; or `require_dkms: false`";
    NoPlace = "no_place", 500, Failed, Lasting,
        "no place can make a sandbox for a job at all",
        "`kiln doctor`";
    NotEquipped = "not_equipped", 500, Failed, Lasting,
        "a build node has another architecture than the server, which has no agent for it",
        "`make agent ARCH=…`, and the directory it makes beside the server's `kiln-agent` \
         ([docker.md](docker.md#another-host-as-a-build-node))";
    NotIsolated = "not_isolated", 500, Failed, Lasting,
        "a job that needs a virtual machine was found by its own agent to run in none, or on the server's \
         kernel; nothing of the recipe had run",
        "see what the engine's runtime really is";
    NoCapacity = "no_capacity", 500, Failed, Lasting,
        "a job asks for more memory or disk than the whole host has for jobs",
        "ask for less, or see `[capacity]`";
    ImageUnreachable = "image_unreachable", 502, Failed, OfThePlace,
        "S3 does not give the root file system of the image that is to be changed; tried again",
        "check the endpoint";
    ImageCorrupt = "image_corrupt", 422, Failed, Lasting,
        "it is not what the image's manifest says, or no squashfs that can be unpacked",
        "make the image anew; the message is unsquashfs's";
    ChangeUnreachable = "change_unreachable", 502, Failed, OfThePlace,
        "S3 does not give a script or playbook that was uploaded with the job, or not as it was uploaded",
        "start the job again";
    ChangeFailed = "change_failed", 500, Failed, Lasting,
        "a command, script or playbook of `kiln customize` failed",
        "what it said stands before that line in the log";
    BadPublicKey = "bad_public_key", 422, Failed, Lasting,
        "the job's public key would open no shell: ssh cannot read it",
        "make the record anew from the `.pub` file";
    NoShellPort = "no_shell_port", 500, Failed, Lasting,
        "none of the ports for shells can be listened on",
        "`ports` in `[shell]`";
    NoShell = "no_shell", 404, Failed, Lasting,
        "`kiln shell` of a job that has none, or none any more",
        "`kiln jobs logs`";
    ShellFailed = "shell_failed", 500, Failed, Lasting,
        "the user of a shell said that the changes failed",
        "`kiln jobs logs`";
    ShellTimeout = "shell_timeout", 500, Failed, Lasting,
        "a shell was not used for twelve hours, or was open for seven days (`idle`, `longest` in `[shell]`)",
        "`kiln jobs complete` keeps what was done";
    HeartbeatLost = "heartbeat_lost", 500, Failed, OfThePlace,
        "the agent said nothing at all for a minute (`heartbeat` in `[watch]`); tried again",
        "see whether the host is overloaded";
    Silent = "silent", 500, Failed, Lasting,
        "nothing new was said for an hour, emulated for ten: neither a step nor a line that was not said \
         before (`silence`)",
        "the end of the log says what hangs";
    WallLimit = "wall_limit", 500, Failed, Lasting,
        "a job took more than four hours, emulated forty (`wall`, `emulated_factor`)",
        "allow more, or see which step takes so long: `kiln jobs status`";
    Interrupted = "interrupted", 500, Interrupted, Lasting,
        "Ctrl-C, SIGTERM or SIGHUP; or, in a record, the build was killed",
        "start it again";

    ["Kernel, initrd and squashfs", ""]
    KernelMissing = "kernel_missing", 422, Failed, Lasting,
        "`--kernel-file-name` was given and the root has no kernel",
        "install a kernel package; without the option such a root is an image without kernel";
    KernelWrongArch = "kernel_wrong_arch", 422, Failed, Lasting,
        "the kernel is for another architecture than the image",
        "look at the repositories' architecture";
    KernelInvalid = "kernel_invalid", 422, Failed, Lasting,
        "the file is no kernel that boot loaders of the architecture take",
        "name another with `--kernel-file-name`";
    InitrdMissing = "initrd_missing", 422, Failed, Lasting,
        "the root has a kernel and no initrd for it",
        "run dracut in `config.sh`, or name it with `--initrd-file-name`";
    SquashfsFailed = "squashfs_failed", 500, Failed, Lasting,
        "mksquashfs failed",
        "the message is its last line";

    ["The sandbox", ""]
    NoUserNamespace = "no_user_namespace", 500, Failed, Lasting,
        "the host does not let this user make user namespaces",
        "the hint names the sysctl to change";
    NoSubids = "no_subids", 500, Failed, Lasting,
        "the user has no range of 65536 ids",
        "`sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER`";
    NoNewuidmap = "no_newuidmap", 500, Failed, Lasting,
        "`newuidmap` or `newgidmap` is not installed",
        "install `uidmap` (Debian) or `shadow` (SUSE, Red Hat)";
    IdMapRefused = "id_map_refused", 500, Failed, Lasting,
        "they refused the range",
        "compare `/etc/subuid` and `/etc/subgid` with the user's name";
    SandboxMount = "sandbox_mount", 500, Failed, Lasting,
        "a mount in the sandbox is refused",
        "inside containers, unmask `/proc`; overlay needs Linux 5.11; else a security module, see the kernel \
         log";
    SandboxRoot = "sandbox_root", 500, Failed, Lasting,
        "the sandbox's root cannot be entered",
        "as above";
    SandboxStart = "sandbox_start", 500, Failed, OfThePlace,
        "something else at the start of a sandbox, or a program to start there, failed",
        "the message names the call or the program";
    SandboxLost = "sandbox_lost", 500, Failed, OfThePlace,
        "the agent or the supervisor ended without giving a reason",
        "something killed it: the kernel log may say what";
    SandboxExists = "sandbox_exists", 409, Failed, Lasting,
        "a job's sandbox is to be started, and there is one",
        "a fault of Kiln's: report it";
    SandboxStuck = "sandbox_stuck", 500, Failed, Lasting,
        "a process of a sandbox cannot be killed",
        "it waits for the kernel, perhaps for a disk: the kernel log may say for which";
    SandboxDisk = "sandbox_disk", 500, Failed, Lasting,
        "disk space of a fixed size cannot be mounted any more",
        "are there loop devices (`losetup --list`)?";
    NoScratch = "no_scratch", 409, Failed, Lasting,
        "a job is to go on with the disk space of another, which is gone, was not unmounted by its virtual \
         machine, or is of the other kind (with, or without, a machine); or a Kata machine cannot make its disk \
         space",
        "start it from its beginning; a guest kernel needs loop devices and ext4";
    EngineGone = "engine_gone", 503, Failed, Passing,
        "a container engine does not answer, or not through SSH",
        "is it running (`docker version`), and is its address right? Jobs wait for it";
    EngineRefused = "engine_refused", 500, Failed, Lasting,
        "a container engine does not do what it is asked",
        "the message is the engine's";
    EngineAddress = "engine_address", 500, Failed, Lasting,
        "the address of a container engine is none",
        "`unix:///var/run/docker.sock`, `tcp://host:2376` or `ssh://user@host`";
    EngineArch = "engine_arch", 500, Failed, Lasting,
        "a container engine runs on an architecture without a toolbox",
        "x86_64, aarch64, ppc64le, s390x and riscv64 have one";
    ImageMissing = "image_missing", 500, Failed, OfThePlace,
        "the toolbox's image was removed from the engine just as a job started",
        "it comes back with the next try";
    RuntimeUnknown = "runtime_unknown", 500, Failed, Lasting,
        "a container engine does not know the runtime that Kiln was told",
        "`docker info` lists them; docs/docker.md and kata/README.md show the lines of `daemon.json`";
    ToolboxImage = "toolbox_image", 500, Failed, Lasting,
        "the toolbox cannot be packed for a container engine",
        "the message says why; `tar` and `awk` must be there";
    NoServerUrl = "no_server_url", 500, Failed, Lasting,
        "a sandbox on another host, or in a Kata machine, would not find the server",
        "`agent_url` in `[server]`";
    HostUnfit = "host_unfit", 500, Failed, Lasting,
        "`kiln doctor` found that something is missing which every job needs",
        "the lines above it say what, each with the next command";
    NoNetwork = "no_network", 500, Failed, Lasting,
        "slirp4netns is not installed, or cannot give a sandbox its network; or a host that `[network]` names \
         has no address",
        "install `slirp4netns`; the user that Kiln runs as must be able to open `/dev/net/tun`";
    NetworkLost = "network_lost", 500, Failed, OfThePlace,
        "slirp4netns ended while a sandbox ran",
        "something killed it: the kernel log may say what";
    NoDoor = "no_door", 500, Failed, Lasting,
        "a port that sandboxes may reach cannot be listened on",
        "the message says which";
    VmLost = "vm_lost", 500, Failed, OfThePlace,
        "a virtual machine ended before its agent did",
        "the last words hold what its kernel or QEMU said last; `oom_kills` above 0 means that the host killed \
         QEMU for want of memory";
    VmBoot = "vm_boot", 500, Failed, Lasting,
        "a virtual machine did not boot in time when it was tried",
        "with `/dev/kvm`: this host's CPU runs no guests, and emulation is used. Without: the host is \
         overloaded";
    VmKernel = "vm_kernel", 500, Failed, Lasting,
        "the kernel beside the toolbox lacks a module that machines need, or cannot be read",
        "remove the toolbox, and `kiln toolbox build`";
    VmDevice = "vm_device", 500, Failed, Lasting,
        "a virtual machine does not find a disk, a port or its network card",
        "the message says which; see whether the toolbox and kiln are of one version";
    VmNetwork = "vm_network", 500, Failed, Lasting,
        "a virtual machine is to have the host's own network",
        "a network of its own is all that it can have";
    CgroupUnavailable = "cgroup_unavailable", 500, Failed, Lasting,
        "this user cannot make control groups",
        "no failure: the build runs without limits";
    Protocol = "protocol", 400, Failed, Lasting,
        "agent and `kiln` do not understand each other",
        "a fault of Kiln's, unless `kiln-agent` is of another version: `make build` builds both";
    AgentUnknown = "agent_unknown", 401, Failed, Lasting,
        "an agent names a job that there is not, or shows another token than the job's",
        "seen by agents only, which then exit";
    JobOver = "job_over", 410, Failed, Lasting,
        "an agent calls although its job has ended",
        "the same";
    AgentMismatch = "agent_mismatch", 500, Failed, Lasting,
        "`kiln` and `kiln-agent` were not built together",
        "`make build` builds both";
    AgentPanic = "agent_panic", 500, Failed, OfThePlace,
        "a fault in the agent",
        "a fault of Kiln's: report it, with the log";
    Panic = "panic", 500, Failed, Lasting,
        "a fault in `kiln`",
        "the same";
    NoAgent = "no_agent", 500, Failed, Lasting,
        "`kiln-agent` is not beside `kiln`",
        "`make build`, or `KILN_AGENT`";
    AgentNotStatic = "agent_not_static", 500, Failed, Lasting,
        "that `kiln-agent` needs a loader",
        "`make build` builds a static one; `cargo build` does not";
    NotLookedAt = "not_looked_at", 503, Failed, Passing,
        "a place has not been looked at yet",
        "nothing: jobs wait until it was";
    ProgramMissing = "program_missing", 500, Failed, OfThePlace,
        "a program that is to be started in a sandbox is not there",
        "the message names it, and the hint its package";

    ["Emulation", ""]
    BinfmtUnavailable = "binfmt_unavailable", 500, Failed, Lasting,
        "`binfmt_misc` cannot be mounted in the sandbox",
        "`modprobe binfmt_misc` once; Linux 6.7 or newer";
    BinfmtRefused = "binfmt_refused", 500, Failed, Lasting,
        "the kernel does not take the entry",
        "the message has the kernel's reason";
    BinfmtTable = "binfmt_table", 500, Failed, Lasting,
        "`qemu/binfmt.toml` is broken or silent about the architecture",
        "a changed file: compare it with the original";
    TwinsTable = "twins_table", 500, Failed, Lasting,
        "`qemu/twins.toml` is broken",
        "a changed file: compare it with the original";
    NoTwins = "no_twins", 500, Failed, Lasting,
        "host and target store numbers in different byte orders, so that no program of the one can stand for \
         one of the other",
        "nothing: everything is emulated";
    EmulatorMissing = "emulator_missing", 500, Failed, Lasting,
        "the toolbox lacks the emulator",
        "`qemu/binfmt.toml` and `kata/toolbox/toolbox.toml` must agree";
    EmulatorBroken = "emulator_broken", 500, Failed, Lasting,
        "a tiny foreign program does not run, or not right",
        "another version of qemu in the toolbox";
    TwinsJoin = "twins_join", 500, Failed, Lasting,
        "only in the log, as the cause of a warning: `kiln-exec` is not beside the agent, or cannot be put in \
         front of the emulator; everything is emulated",
        "`make build`; on hosts other than x86_64 and aarch64 there are no twins";

    ["The toolbox", ""]
    NoToolbox = "no_toolbox", 500, Failed, Lasting,
        "`kiln toolbox show`, and none was built from this version's description; or one for another \
         architecture is to be made, whose emulator comes from this host's own",
        "`kiln toolbox build`";
    NoSandbox = "no_sandbox", 404, Failed, Lasting,
        "no sandbox of that job was kept",
        "`kiln sandboxes list` shows what there is";
    NoMirror = "no_mirror", 500, Failed, Lasting,
        "the host's apt configuration names no mirror that can be used",
        "`kiln toolbox build --mirror URL`";
    ToolboxBuild = "toolbox_build", 500, Failed, Lasting,
        "mmdebstrap or mksquashfs failed",
        "`kiln toolbox build --verbose` shows everything it said";
    ToolboxPin = "toolbox_pin", 500, Failed, Lasting,
        "the mirror has another version than the description was tried with",
        "a mirror of that Debian release, or change `pins` and try it \
         ([kata/toolbox](../kata/toolbox/README.md))";
    ToolboxDefinition = "toolbox_definition", 500, Failed, Lasting,
        "`kata/toolbox/toolbox.toml` is broken",
        "a changed file: the message has line and column";
    ToolboxFacts = "toolbox_facts", 500, Failed, Lasting,
        "the facts about the new toolbox cannot be written down",
        "a fault of Kiln's: report it";
    ToolboxLock = "toolbox_lock", 500, Failed, Lasting,
        "waiting for another process that builds the toolbox failed",
        "try again";
    ToolboxLost = "toolbox_lost", 500, Failed, Lasting,
        "the toolbox vanished while it was put in its place",
        "who else writes to the data directory?";

    ["Artifacts and S3", ""]
    S3Unreachable = "s3_unreachable", 502, Failed, Passing,
        "no connection, or one that broke, or a certificate that is not trusted",
        "check `s3.endpoint`; an authority of your own goes into `s3.ca_bundle`";
    S3Timeout = "s3_timeout", 504, Failed, Passing,
        "S3 does not answer in time",
        "is the service overloaded? try again";
    S3Denied = "s3_denied", 502, Failed, Lasting,
        "the keys are wrong or may not do it, or the clocks differ",
        "keys, their rights on both buckets, this machine's clock";
    S3Region = "s3_region", 502, Failed, Lasting,
        "the bucket is in another region",
        "set `s3.region`";
    S3NoBucket = "s3_no_bucket", 502, Failed, Lasting,
        "the bucket went away",
        "create it, or name another";
    S3Full = "s3_full", 507, Failed, Lasting,
        "the service, or the disk under the embedded one, has no space",
        "free some, or raise the quota";
    S3Missing = "s3_missing", 409, Failed, OfThePlace,
        "an object or an upload is not there any more",
        "who else deletes in the bucket?";
    S3Unavailable = "s3_unavailable", 503, Failed, Passing,
        "S3 answers that it cannot, now: status 408, 429, 500, 502 to 504, or a word such as `SlowDown`",
        "see to the service's health; try again";
    S3Error = "s3_error", 502, Failed, OfThePlace,
        "S3 refused for another reason, which waiting does not mend",
        "the message is S3's";
    S3Settings = "s3_settings", 500, Failed, Lasting,
        "the `[s3]` section cannot work: one key of two, an unreadable `ca_bundle`, an address that is none",
        "correct it";
    S3Configured = "s3_configured", 500, Failed, Lasting,
        "`kiln artifacts serve`, and `[s3]` names a service",
        "use that service's address";
    S3Embedded = "s3_embedded", 500, Failed, Lasting,
        "the embedded service does not start",
        "the message says why: a port in use, a directory that cannot be written, data of a newer Kiln";
    S3EmbeddedAddress = "s3_embedded_address", 500, Failed, Lasting,
        "its address is in use, or is no loopback address",
        "another port, or 0";
    UploadFailed = "upload_failed", 502, Failed, OfThePlace,
        "S3 refused a part six times, or for good",
        "check that the sandbox reaches `s3.public_endpoint`";
    UploadInvalid = "upload_invalid", 400, Failed, Lasting,
        "what was sent is not what was announced",
        "a fault of Kiln's: report it, with the log";
    ArtifactMismatch = "artifact_mismatch", 502, Failed, OfThePlace,
        "S3 has something else than was sent, or an object changed before the manifest was written",
        "build again; if it stays, look for another writer, or at the disks under S3";
    ManifestInvalid = "manifest_invalid", 422, Failed, Lasting,
        "a manifest has not exactly one root file system, or 1 MiB or more, or S3 has not what it describes",
        "correct the one that you gave to `images create --from`; one that Kiln made is a fault to report";
    LogLost = "log_lost", 500, Failed, Lasting,
        "the log could not be packed",
        "a fault of Kiln's: report it";
    NoImage = "no_image", 404, Failed, Lasting,
        "no object of that image is in S3",
        "`kiln artifacts list`";
    CaBundleInvalid = "ca_bundle_invalid", 500, Failed, Lasting,
        "the host's certificate bundle is no PEM file of certificates",
        "repair it: `update-ca-certificates`";
    UploadBroken = "upload_broken", 400, Failed, Lasting,
        "an upload broke off, or ended before all was sent that was announced",
        "send it again";
    UploadTooLarge = "upload_too_large", 413, Refused, Lasting,
        "an upload is larger than the server takes",
        "`upload_bytes` in `[limits]`";
    UploadUnwanted = "upload_unwanted", 409, Failed, Lasting,
        "the record of what was uploaded was deleted or changed meanwhile",
        "see what became of it, then upload again";

    ["The server", ""]
    CannotListen = "cannot_listen", 500, Failed, Lasting,
        "an address of `[server] listen` is in use, or not this host's",
        "stop what listens there, or name another";
    AlreadyServed = "already_served", 500, Failed, Lasting,
        "another `kiln serve` uses the data directory",
        "one directory has one server";
    OidcSettings = "oidc_settings", 500, Failed, Lasting,
        "`[oidc]` cannot work: no audience, authorities that cannot be read",
        "the message says what";
    NoToken = "no_token", 404, Failed, Lasting,
        "`kiln tokens delete`, and there is no such token",
        "`kiln tokens list`";
    Expiry = "expiry", 422, Failed, Lasting,
        "`--expires` is thousands of years away",
        "leave it out";

    ["Commands against a server", ""]
    Usage = "usage", 400, Refused, Lasting,
        "options that do not fit together, or change nothing",
        "the message says which";
    Refused = "refused", 400, Refused, Lasting,
        "the server said no",
        "the message is the server's";
    Unauthorized = "unauthorized", 401, Refused, Lasting,
        "the server wants a token, and had none or one that is not valid",
        "`kiln login`";
    Forbidden = "forbidden", 403, Refused, Lasting,
        "the role of the token may not do it",
        "ask for a role that may do it";
    NotFound = "not_found", 404, Refused, Lasting,
        "there is no such record, or no such function on this server",
        "`… list`; uploads need a Kiln server";
    ServerError = "server_error", 500, Refused, Passing,
        "the server, or something behind it, failed",
        "its log says more";
    ServerAddress = "server_address", 400, Refused, Lasting,
        "the address is none, or holds a name or password",
        "`https://kiln.example.org`";
    ServerUnreachable = "server_unreachable", 502, Failed, Passing,
        "there is no answer, or its certificate is not trusted",
        "is it running? `--ca-file` names an authority of your own";
    ServerTimeout = "server_timeout", 504, Failed, Passing,
        "the server did not answer in time",
        "look whether the request was carried out before repeating it";
    ServerLost = "server_lost", 502, Failed, Passing,
        "the server stopped answering: a command that asked it, or an agent, or the server of a job is gone",
        "look whether a request was carried out before repeating it; jobs are tried again";
    JobFailed = "job_failed", 500, Failed, Lasting,
        "the job of `jobs create --follow` ended without an image; cause and hint are the job's, whose own \
         code `jobs status` shows",
        "`kiln jobs logs ID`";
    ServerUnknown = "server_unknown", 500, Failed, Lasting,
        "what answers is neither Kiln nor IMS",
        "check the address; IMS behind a gateway is below `/apis/ims`";
    RecordUnknown = "record_unknown", 404, Refused, Lasting,
        "a name or the beginning of an id is no record's",
        "take one from the list";
    RecordAmbiguous = "record_ambiguous", 400, Refused, Lasting,
        "a name or the beginning of an id is several records'",
        "take one from the message";
    TokenMissing = "token_missing", 500, Failed, Lasting,
        "`kiln login` was given no token",
        "`--token-stdin`, or `--token FILE`";
    TokenUnreadable = "token_unreadable", 500, Failed, Lasting,
        "the file of the token cannot be read, or has none",
        "the token alone, or JSON with `access_token`";
    TokenInvalid = "token_invalid", 500, Failed, Lasting,
        "the token has characters that no token has",
        "one line of letters, digits and punctuation";
    TokenInsecure = "token_insecure", 500, Failed, Lasting,
        "the token would cross a network without TLS",
        "`https://`";
    CaFileInvalid = "ca_file_invalid", 500, Failed, Lasting,
        "the authorities of `--ca-file` cannot be used",
        "a PEM file of certificates";
    TlsUnusable = "tls_unusable", 500, Failed, Lasting,
        "the host's own authorities cannot be used",
        "a PEM file of certificates with `--ca-file`";
    CredentialsUnreadable = "credentials_unreadable", 500, Failed, Lasting,
        "what `kiln login` kept cannot be read",
        "mode 0600, or log in again";
    CredentialsUnwritable = "credentials_unwritable", 500, Failed, Lasting,
        "`kiln login` cannot keep the token",
        "a directory that can be written";
    NotLoggedIn = "not_logged_in", 500, Failed, Lasting,
        "`kiln logout`, and there was no login",
        "nothing";
    CrayConfiguration = "cray_configuration", 500, Failed, Lasting,
        "`--configuration` names none of `cray`'s with a `core.hostname`",
        "`--server URL`";
    PublicKeyUnreadable = "public_key_unreadable", 422, Failed, Lasting,
        "the file is not there, or holds a private key",
        "the file that ends in `.pub`";
    UploadUnreadable = "upload_unreadable", 500, Failed, Lasting,
        "what is to be uploaded is not there, or cannot be read",
        "the message names the file";
    ImageFiles = "image_files", 500, Failed, Lasting,
        "a directory has no root file system, or several files could be meant",
        "[cli.md](cli.md) lists the names";
    RunFailed = "run_failed", 500, Failed, Lasting,
        "`kiln schedules run-now` made no job",
        "the message says why; `kiln schedules describe` shows what the schedule is told";
    Format = "format", 500, Failed, Lasting,
        "an answer cannot be written in that format",
        "another `--format`; report it";

    ["Moving from and to IMS", ""]
    NotImsData = "not_ims_data", 500, Failed, Lasting,
        "the directory holds no file that an IMS stores",
        "name a copy of the service's `/var/ims/data`";
    TransferIncomplete = "transfer_incomplete", 500, Failed, Lasting,
        "records were left out; each is named with its reason, and all others were taken",
        "mend the file and repeat: what is there already stays as it is";
    StoreUnavailable = "store_unavailable", 503, Failed, Passing,
        "the database does not answer, or its disk is full",
        "see to the database, then repeat";
    StoreDamaged = "store_damaged", 500, Failed, Lasting,
        "a row of the database cannot be read",
        "see to the database, then repeat";
    StoreConflict = "store_conflict", 409, Failed, OfThePlace,
        "a record was changed by another server or request at the same time",
        "read it again, and repeat if it is still wanted";

    ["Configuration and the rest", ""]
    ConfigUnreadable = "config_unreadable", 500, Failed, Lasting,
        "the file that `--config` or `KILN_CONFIG` names cannot be read",
        "check the path";
    ConfigInvalid = "config_invalid", 500, Failed, Lasting,
        "it is no TOML, has a key that Kiln does not know or a value that cannot be, or settings make no sense \
         together; likewise a `KILN__…` variable",
        "`kiln config check` tells every mistake with its line; [configuration.md](configuration.md) lists all \
         keys";
    NoDataDir = "no_data_dir", 500, Failed, Lasting,
        "`HOME` is not set and no data directory is named",
        "`--data-dir DIR`";
    JobRecord = "job_record", 500, Failed, Lasting,
        "a job's record cannot be written down",
        "a fault of Kiln's: report it";
    Io = "io", 500, Failed, Lasting,
        "the operating system refused something that has no better name",
        "the message names the file and the reason";
    Unknown = "unknown", 500, Failed, Lasting,
        "a record was written by another version of Kiln, whose code this one does not know",
        "cause and hint are that version's; see its manual";

    ["Schedules", "These are in the server's log, and their cause in the history of the schedule."]
    ScheduleUnusable = "schedule_unusable", 422, Failed, Lasting,
        "the recipe is gone, or the name of the image cannot be one",
        "`kiln schedules update`";
    JobRefused = "job_refused", 422, Failed, Lasting,
        "a request for such a job would be refused: the recipe has no archive, the key is gone",
        "mend what the cause names";
}
