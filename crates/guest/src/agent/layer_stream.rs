//! `POST /v1/keep`: passes on what the machine's init reads. See [`cofferdam_guest::layer_stream`].

use std::io;
use std::os::unix::net::UnixStream as Line;

use bytes::Bytes;
use cofferdam_guest::frame::{self, Kind};
use cofferdam_guest::layer_stream::{GO, GONE_ON, HOLD, MAX_KEPT_PIECE};
use cofferdam_guest::pieces::{BROKEN, WHOLE};
use cofferdam_guest::wire::CollectEnd;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::agent_sleep::SleepState;
use super::answer::{self, Answer, Pieces, refuse};
use super::clock::sleep_ms;
use super::freeze;
use crate::machine;

/// What was let in before has begun by then: commands are started where they are first polled.
const BEGUN_MS: u64 = 1;

/// Hands the files out, and holds the sandbox until the request's body ends, or until the end of a sleep that begins meanwhile.
pub async fn stream_layer(body: Incoming, sleep_state: SleepState) -> Response<Answer> {
    let Some(line) = machine::layer_line() else {
        return refuse(StatusCode::CONFLICT, "the files of this sandbox do not lie in a machine");
    };
    let still = freeze::freeze().await;
    let (frames, response) = answer::frames();
    tokio::spawn(async move {
        // An error is the init's end, which is the machine's.
        let _ = held(line, body, frames, &sleep_state).await;
        drop(still);
    });
    response
}

async fn held(
    line: &Line,
    body: Incoming,
    frames: Pieces,
    sleep_state: &SleepState,
) -> io::Result<()> {
    sleep_ms(BEGUN_MS).await;
    let line = line.try_clone()?;
    line.set_nonblocking(true)?;
    let mut line = UnixStream::from_std(line)?;
    line.write_all(&[HOLD]).await?;
    let (mut is_told, mut error) = (false, None);
    loop {
        let size = line.read_u32_le().await?;
        if size == WHOLE {
            break;
        }
        if size == BROKEN {
            let size = line.read_u32_le().await?;
            let why = piece(&mut line, size).await?;
            error = Some(String::from_utf8_lossy(&why).into_owned());
            break;
        }
        let piece = piece(&mut line, size).await?;
        if !is_told && frames.send(frame::encode(Kind::Chunk, &piece)).await.is_err() {
            // Nobody wants them any more. What is on its way is read all the same.
            line.write_all(&[GO]).await?;
            is_told = true;
        }
    }
    let is_whole = error.is_none();
    let end = CollectEnd::of(0, error);
    let json = serde_json::to_vec(&end).unwrap_or_default();
    let wants = frames.send(frame::encode(Kind::End, &json)).await.is_ok();
    if wants && is_whole {
        tokio::select! {
            biased;
            // The body ends with the connection, and the task is to be stored as it stands.
            () = sleep_state.fallen() => sleep_state.over().await,
            () = ended(body) => {}
        }
    }
    if !is_told {
        line.write_all(&[GO]).await?;
    }
    match line.read_u8().await? {
        GONE_ON => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

async fn ended(mut body: Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}

async fn piece(line: &mut UnixStream, size: u32) -> io::Result<Bytes> {
    let size = usize::try_from(size).ok().filter(|size| *size <= MAX_KEPT_PIECE);
    let mut piece = vec![0; size.ok_or(io::ErrorKind::InvalidData)?];
    line.read_exact(&mut piece).await?;
    Ok(piece.into())
}
