//! Stands in for the agent: a static program with a script in it. It runs the script as its child, as the agent runs
//! its tools, passes signals to end on to it, and ends when it does. With an argument it rings the test's bell.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use crate::support::tool;

/// Where the script and the bell's address are put into the program.
const SCRIPT_MARK: &[u8] = b"@script@";
const BELL_MARK: &[u8] = b"@bell@";

/// Room for each.
const SCRIPT_ROOM: usize = 32 * 1024;
const BELL_ROOM: usize = 256;

const SOURCE: &str = r#"
#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

char script[SCRIPT_ROOM] = "@script@";
char bell[BELL_ROOM] = "@bell@";

/* Says one line, and waits for an answer. */
static int ring(const char *words) {
    int peer, refused;
    char *colon = strrchr(bell, ':');
    if (bell[0] == '/') {
        struct sockaddr_un to = { .sun_family = AF_UNIX };
        strcpy(to.sun_path, bell);
        peer = socket(AF_UNIX, SOCK_STREAM, 0);
        refused = connect(peer, (struct sockaddr *) &to, sizeof to);
    } else {
        struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(colon + 1)) };
        *colon = 0;
        inet_aton(bell, &to.sin_addr);
        peer = socket(AF_INET, SOCK_STREAM, 0);
        refused = connect(peer, (struct sockaddr *) &to, sizeof to);
    }
    if (refused) return 1;
    if (write(peer, words, strlen(words)) < 0 || write(peer, "\n", 1) < 0) return 1;
    char byte;
    return read(peer, &byte, 1) != 1;
}

static pid_t child;

static void pass_on(int number) { kill(child, number); }

int main(int argc, char **argv) {
    if (argc == 2) return ring(argv[1]);
    int status;
    child = fork();
    if (child > 0) signal(SIGTERM, pass_on);
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", script, (char *) 0);
        _exit(127);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
"#;

/// The program without a script, compiled once.
fn blank() -> &'static [u8] {
    static PROGRAM: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stand-in-{}", std::process::id()));
        fs_err::create_dir_all(&dir).unwrap();
        let (source, program) = (dir.join("agent.c"), dir.join("agent"));
        fs_err::write(&source, SOURCE).unwrap();
        let rooms = [
            format!("-DSCRIPT_ROOM={SCRIPT_ROOM}"),
            format!("-DBELL_ROOM={BELL_ROOM}"),
        ];
        let (source, program) = (source.to_str().unwrap(), program.to_str().unwrap());
        tool("gcc", &["-static", &rooms[0], &rooms[1], "-o", program, source]);
        let bytes = fs_err::read(program).unwrap();
        fs_err::remove_dir_all(&dir).unwrap();
        bytes
    });
    &PROGRAM
}

/// Writes a stand-in with this script to `path`. Its `ring WORD` says `NAME WORD` to the bell at `address`, a path or
/// an address with a port.
pub fn write(path: PathBuf, name: &str, script: &str, address: &str) -> PathBuf {
    let mut program = blank().to_vec();
    let script = format!("ring() {{ /run/agent \"{name} $1\"; }}\n{script}");
    put(&mut program, SCRIPT_MARK, SCRIPT_ROOM, &script);
    put(&mut program, BELL_MARK, BELL_ROOM, address);
    fs_err::write(&path, program).unwrap();
    fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn put(program: &mut [u8], mark: &[u8], room: usize, text: &str) {
    assert!(text.len() < room, "too long: {text}");
    // With the zero after it, since the name alone is in no other place of a program.
    let is_mark = |window: &[u8]| window.starts_with(mark) && window[mark.len()] == 0;
    let at = program.windows(mark.len() + 1).position(is_mark).unwrap();
    program[at..at + room].fill(0);
    program[at..at + text.len()].copy_from_slice(text.as_bytes());
}
