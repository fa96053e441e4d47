//! A server that has little memory, and recipes and callers that would have it take much.

use std::{
    io::Write,
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::signal::Signal;

use crate::faults::site::{Site, rank};
use crate::support::{self, Kiln, Recipe, kiln_program};

/// The memory of the server, in bytes; its jobs have groups of their own.
const MEMORY: u64 = 600 << 20;

/// Writes 300 MiB to kiwi's own standard output, past the reader of the script's.
const FLOOD: &str = r"
for p in /proc/[0-9]*; do
    case $(tr '\0' ' ' < $p/cmdline) in *kiwi-ng*) kiwi=$p ;; esac
done
yes 'a line of a flood that nobody reads, and that is as long as lines are' | head -c 314572800 > $kiwi/fd/1
";

/// Uploads that are never finished, and what each of them sends, in bytes.
const UPLOADS: usize = 40;
const SENT: usize = 24 << 20;

/// A control group with little memory.
struct Group(PathBuf);

impl Group {
    /// None where this process may not make one. Version 1 only: version 2 gives a group of processes no children.
    fn make() -> Option<Self> {
        let groups = fs_err::read_to_string("/proc/self/cgroup").ok()?;
        let own = groups.lines().find_map(|line| line.split_once(":memory:"))?.1;
        let name = format!("kiln-test-memory-{}", std::process::id());
        let dir = Path::new("/sys/fs/cgroup/memory")
            .join(own.trim_start_matches('/'))
            .join(name);
        fs_err::create_dir(&dir).ok()?;
        let group = Self(dir);
        fs_err::write(group.0.join("memory.limit_in_bytes"), MEMORY.to_string()).ok()?;
        Some(group)
    }

    /// How often the kernel killed something in it.
    fn kills(&self) -> u64 {
        let text = fs_err::read_to_string(self.0.join("memory.oom_control")).unwrap();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.expect("the kernel does not count kills").parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The server has ended.
        let _ = fs_err::remove_dir(&self.0);
    }
}

#[test(threads = 4)]
async fn neither_floods_nor_unfinished_uploads_use_up_a_small_memory() {
    needs!(support::no_namespaces(), support::not_root());
    let Some(group) = Group::make() else {
        kiln_harness::skip("there is no control group of version 1 for memory here");
    };
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("kiln");
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = serve ]; then echo $$ > '{}/cgroup.procs' || exit 1; fi\nexec '{}' \"$@\"\n",
        group.0.display(),
        kiln_program().display(),
    );
    fs_err::write(&program, script).unwrap();
    fs_err::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let site = Site::start_in(Kiln::new().with_program(&program), &[]).await;
    let server = site.server_pid().unwrap();
    let flood = site.recipe("flood", Recipe::with_script(FLOOD));
    let small = site.small_recipe();

    let job = site.submit(&flood).await;
    site.wait_until(&job, "building", |job| rank(job) >= 7).await;
    let held = tokio::task::block_in_place(|| unfinished(&site, &small));
    let ended = site.end_of(&job).await;
    println!("{} uploads held; {}", held.len(), ended["used"]);
    assert_eq!(ended["state"], "success", "{ended:#}");
    drop(held);
    let next = site.end_of(&site.submit(&small).await).await;
    assert_eq!(next["state"], "success", "{next:#}");
    assert_eq!(site.server_pid(), Some(server));
    assert_eq!(group.kills(), 0);
    let ran = site.down(Signal::SIGTERM).unwrap();
    assert_eq!(ran.code, Some(0), "{}", ran.last());
    site.kiln.assert_clean();
}

/// Uploads of unknown length that send no more. The server may refuse them and read nothing.
fn unfinished(site: &Site, recipe: &str) -> Vec<TcpStream> {
    let chunk = vec![b'x'; SENT];
    let upload = |_| {
        let mut stream = TcpStream::connect(site.address()).ok()?;
        stream.set_write_timeout(Some(Duration::from_millis(500))).ok()?;
        let head = format!(
            "PUT /kiln/v1/recipes/{recipe}/archive HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n{SENT:x}\r\n"
        );
        stream.write_all(head.as_bytes()).ok()?;
        // What is not taken is as good.
        let _ = stream.write_all(&chunk);
        Some(stream)
    };
    (0..UPLOADS).filter_map(upload).collect()
}
