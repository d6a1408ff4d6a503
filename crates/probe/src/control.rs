//! What a task must be able to do: a sandbox that refuses everything would pass every other probe.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use super::answer::{DONE, said};
use super::entry::{Probe, probe};

pub const PROBES: &[Probe] = &[
    probe("control.write", "write and remove a file in /work", &[DONE], |_| {
        let path = "/work/.probe";
        said(fs::write(path, "x").and_then(|()| fs::remove_file(path)))
    }),
    probe("control.loopback", "listen and connect on its own loopback", &[DONE], |_| {
        said(
            TcpListener::bind("127.0.0.1:0")
                .and_then(|listener| TcpStream::connect(listener.local_addr()?)),
        )
    }),
    probe("control.process", "start a program", &[DONE], |_| {
        // Without a setting it fails at once, and has been started.
        said(Command::new("/proc/self/exe").args(["probe", "", ""]).status())
    }),
];
