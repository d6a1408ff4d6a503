//! Where attempts led that no route led anywhere: what a machine's kernel traces of its routing tables.
//!
//! ```text
//! looked up in vain -> one event in a ring of the kernel -> a line, read when a command has ended
//! ```
//! How many there were the kernel counts as well, and its counter is what counts: an event that found the ring
//! full is lost, and a kernel that traces nothing has a counter all the same.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use cofferdam_guest::wire::NoRoute;

use super::fault::{Fault, at, write};

/// Of each processor: some hundred events.
const RING_KB: &str = "64";
const EVENTS: [&str; 2] = ["fib/fib_table_lookup", "fib6/fib6_table_lookup"];
/// What is read at a time.
const READ_BYTES: usize = 16 * 1024;
/// Reads of one look: more than the ring of every processor holds.
const MAX_READS: usize = 64;
/// Places that are told apart at the end of one command; the counter has the others.
const MAX_PLACES: usize = 64;

/// The ring, open.
#[derive(Debug)]
pub(super) struct Trace(File);

impl Trace {
    /// Starts it, where the kernel's tree of traces is mounted.
    pub(super) fn start(tree: &Path) -> Result<Self, Fault> {
        write(tree.join("buffer_size_kb"), RING_KB)?;
        // A task names its processes as it likes.
        write(tree.join("options/record-cmd"), "0")?;
        for event in EVENTS {
            let event = tree.join("events").join(event);
            write(event.join("filter"), "err < 0")?;
            write(event.join("enable"), "1")?;
        }
        let pipe = tree.join("trace_pipe");
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe);
        Ok(Self(opened.map_err(at(pipe.display().to_string()))?))
    }

    /// What came since the last look.
    pub(super) fn take(&self) -> Vec<NoRoute> {
        let mut text = Vec::new();
        let mut buffer = vec![0; READ_BYTES];
        for _ in 0..MAX_READS {
            match (&self.0).read(&mut buffer) {
                Ok(count @ 1..) => text.extend_from_slice(buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => break,
            }
        }
        places(&String::from_utf8_lossy(&text))
    }
}

fn places(text: &str) -> Vec<NoRoute> {
    let mut places: Vec<NoRoute> = Vec::new();
    for (address, port) in text.lines().filter_map(place) {
        let is_it = |known: &&mut NoRoute| known.address == address && known.port == port;
        if let Some(known) = places.iter_mut().find(is_it) {
            known.count = known.count.saturating_add(1);
        } else if places.len() < MAX_PLACES {
            places.push(NoRoute { address, port, count: 1 });
        }
    }
    places
}

/// `... 0.0.0.0/0 -> 192.0.2.1/443 ...`, with ports behind the slashes.
fn place(line: &str) -> Option<(IpAddr, u16)> {
    let (_, to) = line.split_once(" -> ")?;
    let (address, port) = to.split(' ').next()?.split_once('/')?;
    Some((address.parse().ok()?, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: &str = "           <...>-310     [000] .....   141.118: fib_table_lookup: table 254 oif 0 \
                        iif 1 proto 6 0.0.0.0/0 -> 192.0.2.1/443 tos 0 scope 0 flags 0 ==> dev - gw \
                        0.0.0.0/:: err -11\n";
    const SIX: &str = "           <...>-310     [000] .....   141.120: fib6_table_lookup: table 254 oif 0 \
                       iif 1 proto 17 ::/0 -> 2001:db8::1/53 flags 0 tos 0 scope 0 ==> dev - gw :: err \
                       -113\n";

    #[test]
    fn a_line_gives_where_an_attempt_led() {
        let told = places(&format!("{FOUR}{SIX}CPU:0 [LOST 7 EVENTS]\n{FOUR} -> x/1\n -> ::1/y"));
        let told: Vec<_> = told.iter().map(|p| (p.address.to_string(), p.port, p.count)).collect();
        let expected = [("192.0.2.1".to_owned(), 443, 2), ("2001:db8::1".to_owned(), 53, 1)];
        assert_eq!(told, expected);
    }

    #[test]
    fn places_are_bounded() {
        let many: String =
            (0..200).map(|port| FOUR.replace("/443 ", &format!("/{port} "))).collect();
        assert_eq!(places(&many).len(), MAX_PLACES);
    }
}
