//! The talk with the host before the agent is there: lines, and an end where the host is gone.
//!
//! ```text
//! read of a port without a host   end of file
//! write to it                     waits, for ever      <- so nothing here blocks in the kernel, and poll tells
//! ```
//! A worker that is killed while its machine comes to life leaves nobody who would end the machine but itself.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};

use cofferdam_guest::setup::MAX_SETUP_BYTES;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::retry_on_intr;
use rustix::time::Timespec;

/// How often a port is asked whether the host has its end open, of which it hears after it is there. Ten seconds.
const ASKS: usize = 500;
const ASK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// A port, or a socket in its place.
#[derive(Debug)]
pub struct Stream(File);

impl Stream {
    /// Takes it over.
    pub fn new(file: File) -> io::Result<Self> {
        fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::NONBLOCK)?;
        Ok(Self(file))
    }

    /// Waits until the host has its end open.
    pub fn connected(self) -> io::Result<Self> {
        for _ in 0..ASKS {
            if self.poll(PollFlags::OUT, Some(&Timespec::default()))?.contains(PollFlags::OUT) {
                return Ok(self);
            }
            poll(&mut [], Some(&ASK_EVERY))?;
        }
        Err(io::ErrorKind::NotConnected.into())
    }

    /// Says all of it.
    pub fn say(&mut self, text: &str) -> io::Result<()> {
        self.say_bytes(text.as_bytes())
    }

    /// The same of what is no text.
    pub fn say_bytes(&mut self, mut rest: &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            match self.0.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) => self.again(error, PollFlags::OUT)?,
            }
        }
        Ok(())
    }

    /// One line with its end. The host says nothing behind it before it is answered.
    pub fn hear(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        let mut buffer = vec![0; 32 * 1024];
        while line.last() != Some(&b'\n') && line.len() < MAX_SETUP_BYTES {
            match self.0.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => line.extend_from_slice(buffer.get(..count).unwrap_or_default()),
                Err(error) => self.again(error, PollFlags::IN)?,
            }
        }
        Ok(line)
    }

    /// Waits until what failed is worth another try.
    fn again(&self, error: io::Error, wanted: PollFlags) -> io::Result<()> {
        match error.kind() {
            io::ErrorKind::Interrupted => Ok(()),
            io::ErrorKind::WouldBlock => match self.poll(wanted, None)?.intersects(wanted) {
                true => Ok(()),
                false => Err(io::ErrorKind::BrokenPipe.into()),
            },
            _ => Err(error),
        }
    }

    fn poll(&self, wanted: PollFlags, limit: Option<&Timespec>) -> io::Result<PollFlags> {
        let mut asked = [PollFd::new(&self.0, wanted)];
        retry_on_intr(|| poll(&mut asked, limit))?;
        let [answer] = asked;
        Ok(answer.revents())
    }
}

/// Waits for bytes; none are the host's end.
impl io::Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) => self.again(error, PollFlags::IN)?,
                read => return read,
            }
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    fn pair() -> (Stream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Stream::new(File::from(OwnedFd::from(ours))).unwrap(), theirs)
    }

    #[test]
    fn a_line_may_come_in_pieces_and_what_is_said_may_have_to_wait() {
        let (stream, mut host) = pair();
        let mut stream = stream.connected().unwrap();
        let long = "x".repeat(2_000_000) + "\n";
        let told = long.clone();
        let hosts = thread::spawn(move || {
            let mut heard = vec![0; told.len()];
            host.read_exact(&mut heard).unwrap();
            assert_eq!(heard, told.as_bytes());
            for piece in ["one ", "li", "ne\n"] {
                host.write_all(piece.as_bytes()).unwrap();
            }
            host
        });
        stream.say(&long).unwrap();
        assert_eq!(stream.hear().unwrap(), b"one line\n");
        drop(hosts.join().unwrap());
        assert_eq!(stream.hear().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(stream.say("anybody?\n").is_err());
    }
}
