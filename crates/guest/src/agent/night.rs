//! The time in which the agent sleeps: see [`cofferdam_guest::sleep`].

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream as Socket;

use cofferdam_guest::sleep::{ASK, ASLEEP, CUT_WITHIN, Listening, WAKE};
use tokio::sync::watch;

use super::clock::sleep_ms;

/// Between two looks at the stream: little of a resume.
const LOOK_MS: u64 = 2;

/// Whether it is night.
#[derive(Debug, Clone, Default)]
pub struct Night(watch::Sender<bool>);

impl Night {
    pub fn fall(&self) {
        self.0.send_replace(true);
    }

    pub fn end(&self) {
        self.0.send_replace(false);
    }

    /// Once it falls.
    pub async fn fallen(&self) {
        // An error would mean that there is no sender, which is ours.
        let _ = self.0.subscribe().wait_for(|is_night| *is_night).await;
    }
}

/// Reads the stream up to the word that wakes us, and says that we sleep as often as we are asked. An end of the stream is an
/// error: nobody holds us any more.
///
/// It looks, and waits for no notice: a kernel that was stored may have none of what had come before it went on.
pub async fn woken(socket: &Socket) -> io::Result<()> {
    let (mut stream, mut asked, mut called) = (socket, Listening::to(ASK), Listening::to(WAKE));
    // One byte at a time: what follows the word is the next connection's.
    let mut next = [0];
    while looked(|| stream.read(&mut next)).await? > 0 {
        let [byte] = next;
        if called.hears(byte) {
            return Ok(());
        }
        if asked.hears(byte) {
            say(socket, ASLEEP).await?;
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// Ends the connection at the other end, where it was cut off at this one.
pub async fn cut(socket: &Socket) -> io::Result<()> {
    say(socket, &[0; CUT_WITHIN]).await
}

async fn say(mut stream: &Socket, mut word: &[u8]) -> io::Result<()> {
    while !word.is_empty() {
        let written = looked(|| stream.write(word)).await?;
        word = word.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// What a call gives, once it need not be waited for.
async fn looked(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep_ms(LOOK_MS).await,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_word_wakes_after_what_was_left_and_takes_nothing_of_what_follows() {
        let (ours, mut theirs) = Socket::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.write_all(b"the end of what was before").unwrap();
        theirs.write_all(&WAKE[..5]).unwrap();
        theirs.write_all(ASK).unwrap();
        theirs.write_all(&[0; 9]).unwrap();
        theirs.write_all(WAKE).unwrap();
        theirs.write_all(b"next").unwrap();
        woken(&ours).await.unwrap();
        let mut said = [0; ASLEEP.len()];
        theirs.read_exact(&mut said).unwrap();
        assert_eq!(said, *ASLEEP);
        let mut rest = [0; 4];
        (&ours).read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"next");
        drop(theirs);
        assert!(woken(&ours).await.is_err());
    }
}
