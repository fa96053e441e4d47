//! Ports of the loopback for services whose addresses outlive them. Binds and closes sockets.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU16, Ordering},
};

/// Below the ports that Linux gives to connections and to those that bind port 0 (32768 to 60999 unless configured
/// otherwise, `ip(7)`): such a port could be given away between its choice and its use, or while its service restarts.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A free port of the loopback, which this process chooses once only.
pub fn free_port() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    // Two test runs at once begin at different places.
    let begin = u16::try_from(std::process::id() * 101 % u32::from(COUNT)).unwrap();
    for _ in 0..COUNT {
        let port = FIRST + (begin + TRIED.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port from {FIRST} on is free");
}
