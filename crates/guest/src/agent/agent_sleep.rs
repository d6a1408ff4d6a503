//! The agent while its sandbox is stored: it answers no request, and waits for the word that wakes it ([`cofferdam_guest::sleep`]).

use std::io;
use std::os::unix::net::UnixStream as Line;

use cofferdam_guest::layer_stream::{RESTORE, RISEN};
use cofferdam_guest::sleep::{ASK, ASLEEP, CUT_WITHIN, WAKE, WordMatcher};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::watch;

/// Whether the agent sleeps.
#[derive(Debug, Clone, Default)]
pub struct SleepState(watch::Sender<bool>);

impl SleepState {
    pub fn fall(&self) {
        self.0.send_replace(true);
    }

    pub fn end(&self) {
        self.0.send_replace(false);
    }

    /// Once it falls.
    pub async fn fallen(&self) {
        // An error would mean that there is no sender, which is ours.
        let _ = self.0.subscribe().wait_for(|sleeps| *sleeps).await;
    }

    /// Once it is over.
    pub async fn over(&self) {
        let _ = self.0.subscribe().wait_for(|sleeps| !*sleeps).await;
    }
}

/// Reads the stream up to the word that wakes us, and says that we sleep as often as we are asked. An end of the stream is an
/// error: nobody holds us any more.
pub async fn awake(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    let (mut asked, mut called) = (WordMatcher::to(ASK), WordMatcher::to(WAKE));
    loop {
        // One byte at a time: what follows the word is the next connection's.
        let byte = stream.read_u8().await?;
        if called.hears(byte) {
            return Ok(());
        }
        if asked.hears(byte) {
            stream.write_all(ASLEEP).await?;
        }
    }
}

/// Ends the connection at the other end, where it was cut off at this one.
pub async fn cut(stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    stream.write_all(&[0; CUT_WITHIN]).await
}

/// Has the init of a machine take the stream, and renew what was stored. Nobody else uses its line during the sleep.
pub async fn restore(line: &Line) -> io::Result<()> {
    let line = line.try_clone()?;
    line.set_nonblocking(true)?;
    let mut line = UnixStream::from_std(line)?;
    line.write_all(&[RESTORE]).await?;
    match line.read_u8().await? {
        RISEN => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream as Socket;

    use super::*;
    use crate::agent::persistent_stream::PersistentStream;

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
        awake(&mut PersistentStream::of(&ours, true).unwrap()).await.unwrap();
        let mut said = [0; ASLEEP.len()];
        theirs.read_exact(&mut said).unwrap();
        assert_eq!(said, *ASLEEP);
        let mut rest = [0; 4];
        (&ours).read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"next");
        drop(theirs);
        assert!(awake(&mut PersistentStream::of(&ours, true).unwrap()).await.is_err());
    }
}
