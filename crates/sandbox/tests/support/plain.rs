//! A server of the test's own on the host, and what a task says to reach it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread;

use cofferdam_contracts::sandbox::{Violation, ViolationReason};

/// Where a sandbox meets the egress proxy.
pub const PROXY: &str = "127.0.0.53:3128";

/// A server of one answer; `/endless`, or anything that is not HTTP, gets bytes until it goes away;
/// both are told.
pub fn plain() -> (SocketAddr, mpsc::Receiver<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (told, heard) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, told) = (stream.unwrap(), told.clone());
            thread::spawn(move || {
                let mut asked = [0; 4096];
                let count = stream.read(&mut asked).unwrap_or(0);
                let asked = String::from_utf8_lossy(&asked[..count]).into_owned();
                if asked.starts_with("GET / ") {
                    let host = asked.lines().find(|line| line.to_lowercase().starts_with("host:"));
                    let body = format!("plain for {}\n", host.unwrap_or("nobody"));
                    let length = body.len();
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                    stream.write_all((head + &body).as_bytes()).unwrap();
                } else if count > 0 {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
                    let _ = told.send(true);
                    while stream.write_all(&[b'x'; 512]).is_ok() {
                        thread::yield_now();
                    }
                    let _ = told.send(false);
                }
            });
        }
    });
    (address, heard)
}

/// How many refusals of a kind there were at a port, of a name or address where one is given.
pub fn count(violations: &[Violation], why: ViolationReason, name: Option<&str>, port: u16) -> u64 {
    let of = |v: &&Violation| {
        v.why == why
            && v.port == Some(port)
            && name.is_none_or(|name| {
                v.name.as_deref() == Some(name) || v.address.as_deref() == Some(name)
            })
    };
    violations.iter().filter(of).map(|v| v.count).sum()
}
