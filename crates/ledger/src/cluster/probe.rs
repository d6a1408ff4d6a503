//! The one question asked of the server itself: do you take our connections?
//!
//! A start-up message of the PostgreSQL protocol, version 3.0, and the first answer to it; so no
//! driver is needed, and "the database system is starting up" is told by its SQLSTATE.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::names::{LEDGER, NAME};

/// A local server answers in 3 ms; one that takes longer is asked again.
const PATIENCE: Duration = Duration::from_secs(5);
/// An error's fields: a code and a line of text.
const ANSWER_MAX: u64 = 4096;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It takes connections to our database.
    Yes,
    /// Nobody listens, or it starts up, or it shuts down, or all its slots are taken.
    NotNow,
    /// It answers, and will not have us.
    No { code: String, detail: String },
}

pub(super) async fn ask(socket_dir: &Path) -> Answer {
    let socket = socket_dir.join(".s.PGSQL.5432");
    match tokio::time::timeout(PATIENCE, exchange(&socket)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) | Err(_) => Answer::NotNow,
    }
}

async fn exchange(socket: &Path) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(&startup()).await?;
    let mut head = [0u8; 5];
    stream.read_exact(&mut head).await?;
    let [kind, length @ ..] = head;
    if kind == b'R' {
        // Under `peer`, authentication succeeds before the database is looked up: read on.
        return after_authentication(&mut stream, length).await;
    }
    error(&mut stream, length).await
}

async fn after_authentication(stream: &mut UnixStream, mut length: [u8; 4]) -> io::Result<Answer> {
    loop {
        skip(stream, length).await?;
        let kind = stream.read_u8().await?;
        stream.read_exact(&mut length).await?;
        match kind {
            b'Z' => {
                stream.write_all(&[b'X', 0, 0, 0, 4]).await?;
                return Ok(Answer::Yes);
            }
            b'E' => return error(stream, length).await,
            _ => {}
        }
    }
}

async fn skip(stream: &mut UnixStream, length: [u8; 4]) -> io::Result<()> {
    let mut body = vec![0u8; body_len(length)?];
    stream.read_exact(&mut body).await.map(|_| ())
}

async fn error(stream: &mut UnixStream, length: [u8; 4]) -> io::Result<Answer> {
    let mut body = vec![0u8; body_len(length)?];
    stream.read_exact(&mut body).await?;
    Ok(classify(&body))
}

/// Fields are a letter and a zero-terminated text: `C` the SQLSTATE, `M` the message.
fn classify(body: &[u8]) -> Answer {
    let field = |letter: u8| {
        let mut fields = body.split(|byte| *byte == 0);
        let found = fields.find_map(|field| field.strip_prefix(&[letter]));
        found.map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
    };
    match field(b'C') {
        // cannot_connect_now, too_many_connections, admin_shutdown, crash_shutdown
        code if ["57P03", "53300", "57P01", "57P02"].contains(&code.as_str()) => Answer::NotNow,
        code => Answer::No { code, detail: field(b'M') },
    }
}

/// A message's length counts its own four bytes.
fn body_len(length: [u8; 4]) -> io::Result<usize> {
    let body = u64::from(u32::from_be_bytes(length)).saturating_sub(4);
    let fits = usize::try_from(body).ok().filter(|_| body <= ANSWER_MAX);
    fits.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn startup() -> Vec<u8> {
    let fields = format!("user\0{LEDGER}\0database\0{NAME}\0application_name\0cofferdam\0\0");
    let length = u32::try_from(8 + fields.len()).unwrap_or(u32::MAX);
    let mut message = length.to_be_bytes().to_vec();
    message.extend(196_608_u32.to_be_bytes()); // 3.0: 3 << 16
    message.extend(fields.as_bytes());
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_told_by_its_sqlstate() {
        assert_eq!(
            classify(b"SFATAL\0C57P03\0Mthe database system is starting up\0\0"),
            Answer::NotNow
        );
        let no = Answer::No { code: "3D000".into(), detail: "no database".into() };
        assert_eq!(classify(b"SFATAL\0C3D000\0Mno database\0\0"), no);
    }

    #[test]
    fn the_startup_message_counts_its_own_length() {
        let message = startup();
        let [a, b, c, d] = [message[0], message[1], message[2], message[3]];
        assert_eq!(usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap(), message.len());
    }
}
