//! Asking a service whether it works, through the agent.

use std::time::Duration;

use cofferdam_contracts::service::Probe;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::env::POSTGRES_USER;
use crate::agent::Agent;

/// One question: a service that is up answers in a millisecond or two.
const ASK: Duration = Duration::from_secs(2);
/// What is read of an answer: enough for PostgreSQL's error with its code.
const ANSWER_BYTES: usize = 512;

/// Whether it answers as its protocol says.
pub(super) async fn is_healthy(agent: &Agent, port: u16, probe: Probe) -> bool {
    tokio::time::timeout(ASK, ask(agent, port, probe))
        .await
        .is_ok_and(|answer| answer == Some(true))
}

async fn ask(agent: &Agent, port: u16, probe: Probe) -> Option<bool> {
    let mut stream = agent.dial(port).await.ok()?;
    let question = question(probe);
    if question.is_empty() {
        return Some(true);
    }
    stream.write_all(&question).await.ok()?;
    let mut answer = Vec::with_capacity(ANSWER_BYTES);
    while answer.len() < ANSWER_BYTES {
        let mut piece = [0; ANSWER_BYTES];
        let count = stream.read(&mut piece).await.ok()?;
        answer.extend_from_slice(piece.get(..count).unwrap_or_default());
        if let Some(verdict) = verdict(probe, &answer) {
            return Some(verdict);
        }
        if count == 0 {
            return None;
        }
    }
    None
}

fn question(probe: Probe) -> Vec<u8> {
    match probe {
        Probe::Tcp => Vec::new(),
        Probe::Http => b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n".to_vec(),
        Probe::Redis => b"PING\r\n".to_vec(),
        Probe::Postgres => {
            // Length, protocol 3.0, then parameters, each ended by a zero, and one zero more.
            let rest = format!("user\0{POSTGRES_USER}\0\0");
            let length = u32::try_from(rest.len() + 8).unwrap_or(u32::MAX);
            let head = [length.to_be_bytes(), 0x0003_0000_u32.to_be_bytes()].concat();
            [head.as_slice(), rest.as_bytes()].concat()
        }
    }
}

/// Nothing while the answer is too short to tell.
fn verdict(probe: Probe, answer: &[u8]) -> Option<bool> {
    match probe {
        Probe::Tcp => Some(true),
        Probe::Http => (answer.len() >= 7).then(|| answer.starts_with(b"HTTP/1.")),
        // Whoever asks for the password works; whoever is still loading says so with another word.
        Probe::Redis => (answer.len() >= 7)
            .then(|| answer.starts_with(b"+PONG") || answer.starts_with(b"-NOAUTH")),
        Probe::Postgres => match answer.first()? {
            b'R' => Some(true),
            // "The database system is starting up"; any other error comes from a server that works.
            b'E' => {
                let whole = answer.get(1..5).and_then(|length| length.try_into().ok());
                let length = usize::try_from(u32::from_be_bytes(whole?)).unwrap_or(usize::MAX);
                let text = answer.get(5..)?;
                (text.len() >= length.saturating_sub(4).min(ANSWER_BYTES - 5))
                    .then(|| !text.windows(6).any(|part| part == b"C57P03"))
            }
            _ => Some(false),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_judged_by_its_protocol() {
        let starting = [b"E\0\0\0\x0dC57P03\0\0\0".as_slice()].concat();
        for (probe, answer, expected) in [
            (Probe::Redis, b"+PONG\r\n".as_slice(), Some(true)),
            (Probe::Redis, b"-NOAUTH Authentication required.\r\n", Some(true)),
            (Probe::Redis, b"-LOADING Redis is loading\r\n", Some(false)),
            (Probe::Redis, b"+PO", None),
            (Probe::Http, b"HTTP/1.0 404 Not Found\r\n", Some(true)),
            (Probe::Http, b"SSH-2.0-x\r\n", Some(false)),
            (Probe::Postgres, b"R\0\0\0\x17", Some(true)),
            (Probe::Postgres, &starting, Some(false)),
            (Probe::Postgres, b"E\0\0\0\x0dC28000\0\0\0", Some(true)),
            (Probe::Postgres, b"E\0\0", None),
            (Probe::Postgres, b"HTTP/1.0 400", Some(false)),
        ] {
            assert_eq!(verdict(probe, answer), expected, "{probe:?} {answer:?}");
        }
        assert_eq!(question(Probe::Postgres).len(), 23);
    }
}
