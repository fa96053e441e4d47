//! A port of the host's loopback that sandboxes reach through a door, to say how far they are and to be held up.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    net::{IpAddr, TcpListener},
    sync::{Arc, Mutex},
    time::Duration,
};

/// A word with this prefix is answered only when the test allows it.
pub const HELD: &str = "held-";

/// The bell.
#[derive(Debug)]
pub struct Bell {
    /// Its port.
    pub port: u16,
    words: Arc<Mutex<Words>>,
}

#[derive(Debug, Default)]
struct Words {
    said: BTreeSet<String>,
    let_go: BTreeSet<String>,
}

impl Bell {
    /// Hangs it up at an address of this host.
    pub fn at(address: IpAddr) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let words = Arc::new(Mutex::new(Words::default()));
        let theirs = Arc::clone(&words);
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let words = Arc::clone(&theirs);
                std::thread::spawn(move || {
                    let mut line = String::new();
                    let _ = BufReader::new(&socket).read_line(&mut line);
                    let word = line.trim_end().to_owned();
                    let held = word.contains(&format!(" {HELD}"));
                    words.lock().unwrap().said.insert(word.clone());
                    while held && !words.lock().unwrap().let_go.contains(&word) {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    // A sandbox that misses the answer rings again.
                    let _ = (&socket).write_all(b".");
                });
            }
        });
        Self { port, words }
    }

    /// Whether the sandbox `name` has said this.
    pub fn has_heard(&self, name: &str, word: &str) -> bool {
        self.words.lock().unwrap().said.contains(&format!("{name} {word}"))
    }

    /// Answers a held word, now or later.
    pub fn let_go(&self, name: &str, word: &str) {
        self.words.lock().unwrap().let_go.insert(format!("{name} {word}"));
    }
}
