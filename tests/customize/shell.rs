//! Shells by hand: what works in them, and what comes out.

use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    time::Duration,
};

use super::site::{Site, changed, paths, rootfs};
use crate::support::{self, tool};

#[test]
fn a_jail_is_changed_with_ssh_sftp_scp_and_rsync_and_nothing_else_changes() {
    needs!(support::no_namespaces(), support::not_root());
    let site = Site::start(&[]);
    let before = site.json(&["images", "describe", &site.image]);
    let job = site.customize(&["--ssh-containers-jail", "true"]);
    let shell = site.open(&job);
    let record = site.record(&job);
    assert_eq!(record["status"], "waiting_on_user");
    assert_eq!(record["ssh_containers"][0]["status"], "ready");
    for network in ["customer_access", "cluster.local"] {
        let at = &record["ssh_containers"][0]["connection_info"][network];
        assert_eq!(
            (&at["host"], &at["port"]),
            (&shell.host.clone().into(), &shell.port.into())
        );
    }

    // The environment that IMS's users expect.
    let environment = shell.run("echo $IMS_JOB_ID $IMS_ARCH $IMS_DKMS_ENABLED; id -u; ls /etc/cray/ca");
    assert_eq!(
        environment,
        format!("{job} {} False\n0\ncertificate_authority.crt\n", support::HOST)
    );
    assert!(shell.run("cat /etc/resolv.conf").contains("nameserver"));
    shell.run("test -r /proc/self/status && test -c /dev/null && test ! -e /scratch");

    // Exit codes, standard error, standard input.
    let output = shell.try_run("echo out; echo err >&2; exit 42");
    assert_eq!(output.status.code(), Some(42));
    assert_eq!((&*output.stdout, &*output.stderr), (&b"out\n"[..], &b"err\n"[..]));
    let mut cat = shell
        .ssh(&["root@127.0.0.1", "sha256sum"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let million = vec![b'x'; 3_000_000];
    cat.stdin.take().unwrap().write_all(&million).unwrap();
    let sum = String::from_utf8(cat.wait_with_output().unwrap().stdout).unwrap();
    assert!(
        sum.starts_with(&hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&million))),
        "{sum}"
    );

    // A terminal, whose size follows that of the user's, and which says how to end.
    let seen = terminal(&shell, "stty size; stty size; exit\n");
    assert!(seen.contains("33 77"), "{seen}");
    assert!(seen.contains("touch /tmp/complete"), "{seen}");

    // Neither forwarding nor other ways out.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let forward = ["-N", "-L", &format!("{port}:127.0.0.1:22"), "root@127.0.0.1"];
    let mut forward = support::Started::new(shell.ssh(&forward));
    support::eventually(|| TcpStream::connect(("127.0.0.1", port)));
    forward.wait_for("administratively prohibited");
    drop(forward);

    // Files in every usual way.
    let home = site.home.path();
    fs_err::write(home.join("one"), "by scp\n").unwrap();
    let (options, port) = (shell.options().join("\n"), shell.port.to_string());
    let options: Vec<&str> = options.split('\n').collect();
    let one = home.join("one").display().to_string();
    tool(
        "scp",
        &[&options[..], &["-P", &port, &one, "root@127.0.0.1:/root/one"]].concat(),
    );
    shell.sftp(&format!("put {one} /root/two\nchmod 600 /root/two\n"));
    fs_err::create_dir(home.join("tree")).unwrap();
    fs_err::write(home.join("tree/three"), "by rsync\n").unwrap();
    let ssh = format!("ssh -p {port} {}", options.join(" "));
    let from = format!("{}/", home.join("tree").display());
    tool("rsync", &["-rt", "-e", &ssh, &from, "root@127.0.0.1:/root/tree"]);
    shell.run("rm /etc/of-somebody; nohup sh -c 'while :; do echo late > /root/late; sleep 0.01; rm -f /root/late; done' >/dev/null 2>&1 &");
    shell.run("touch /tmp/complete");

    let (image, after) = site.succeeded(&job);
    assert_eq!(
        (&image["name"], &image["arch"]),
        (&"changed".into(), &support::HOST.into())
    );
    assert_eq!(image["metadata"]["kiln.image"], site.image.as_str());
    let differing = changed(rootfs(), &after);
    let mut expected = paths(&[
        "/",
        "/etc",
        "/etc/of-somebody",
        "/root",
        "/root/.bash_history",
        "/root/one",
        "/root/two",
        "/root/tree",
        "/root/tree/three",
        "/tmp",
    ]);
    // Only their contents' times.
    expected.remove("/");
    // Remaining processes were ended, wherever they ran.
    let differing: Vec<_> = differing.into_iter().filter(|path| path != "/root/late").collect();
    assert_eq!(differing, expected.into_iter().collect::<Vec<_>>());
    assert_eq!(
        site.json(&["images", "describe", &site.image]),
        before,
        "the base changed"
    );
    let record = site.record(&job);
    assert_eq!(record["ssh_containers"][0]["status"], "closed");
    assert!(
        TcpStream::connect(("127.0.0.1", shell.port)).is_err(),
        "the port is still open"
    );
    site.stop();
}

#[test]
fn who_has_said_complete_may_finish() {
    needs!(support::no_namespaces(), support::not_root());
    let site = Site::start(&[]);
    let job = site.customize(&[]);
    let shell = site.open(&job);
    // As Ansible does: one connection for all tasks, and a session to clean up after the last.
    let path = format!("ControlPath={}", site.home.path().join("control").display());
    let control = ["-o", "ControlMaster=auto", "-o", &path, "-o", "ControlPersist=60"];
    let session = |script| {
        let mut command = shell.ssh(&[&control[..], &["root@127.0.0.1", script]].concat());
        support::succeed(command.stdin(Stdio::null()));
    };
    session("touch /mnt/image/complete");
    // The agent looks for the word each second, and must not end the shell while the connection is there.
    std::thread::sleep(Duration::from_secs(1));
    session("touch /mnt/image/image-root/root/finished");
    let (_, after) = site.succeeded(&job);
    assert_eq!(changed(rootfs(), &after), paths(&["/root", "/root/finished"]));
    site.stop();
}

/// The output of an interactive session in a terminal of 77 columns and 33 lines.
fn terminal(shell: &super::site::Shell, typed: &str) -> String {
    let mut line: Vec<String> = vec!["stty cols 77 rows 33; exec ssh -tt".to_owned()];
    line.extend(shell.options().iter().cloned());
    line.push(format!("-p {} root@127.0.0.1", shell.port));
    let mut script = Command::new("script");
    script.args([
        "--quiet",
        "--flush",
        "--return",
        "--command",
        &line.join(" "),
        "/dev/null",
    ]);
    let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    script.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    String::from_utf8_lossy(&script.wait_with_output().unwrap().stdout).into_owned()
}

#[test]
fn kiln_shell_finds_the_way_and_the_image_is_entered_from_outside() {
    needs!(support::no_namespaces(), support::not_root());
    let site = Site::start(&[]);
    let job = site.customize(&[]);
    // It waits until the shell is open, and finds host, port, key and host key by itself.
    let ran = site.run(&[
        "shell",
        &job,
        "--",
        "ls /mnt/image; chroot /mnt/image/image-root sh -c 'echo $IMS_JOB_ID > /root/mark'",
    ]);
    assert_eq!(ran.ok().stdout.trim(), "image-root");
    let ran = site.run(&["shell", &job, "--", "exit 9"]);
    assert_eq!(ran.code, Some(9));
    site.json(&["jobs", "complete", &job]);
    let (_, after) = site.succeeded(&job);
    assert_eq!(changed(rootfs(), &after), paths(&["/root", "/root/mark"]));
    let ran = site.run(&["shell", &job]);
    assert!(ran.failed().contains("closed"), "{}", ran.last());
    let ran = site.run(&["jobs", "complete", &job]);
    assert!(ran.stderr.contains("no shell that is open"), "{}", ran.last());
    site.stop();
}
