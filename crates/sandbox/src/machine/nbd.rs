//! The server of a machine's disk: the network block device protocol on one socket pair, read-only.
//!
//! ```text
//! greeting -> flags -> options: GO is answered, everything else is refused -> requests: READ, or an error
//! ```
//! Its client is the emulator, which a hostile machine may have taken: every length is bounded,
//! and all that can be had is the disk that the machine was given. The constants are those of the
//! protocol's own text (`doc/proto.md` of NBD).

#[cfg(test)]
mod fuzz;

use std::io::{self, Read, Write};

use super::disk::{Reader, SIZE};

const MAGIC: &[u8; 8] = b"NBDMAGIC";
const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const REPLY_MAGIC: u64 = 0x0003_E889_0455_65A9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const ANSWER_MAGIC: u32 = 0x6744_6698;
/// Both sides: fixed newstyle, and no padding of zeros.
const HANDSHAKE_FLAGS: u16 = 3;
const OPTION_ABORT: u32 = 2;
const OPTION_GO: u32 = 7;
const REPLY_DONE: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_UNSUPPORTED: u32 = 0x8000_0001;
/// It has flags, and is read-only.
const EXPORT_FLAGS: u16 = 3;
const READ: u16 = 0;
const DISCONNECT: u16 = 2;
const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
/// Of an option: a name and a few numbers.
const MAX_OPTION: u32 = 8 * 1024;
/// Options of one client.
const MAX_OPTIONS: usize = 64;
/// Of one read, as the protocol's text bounds what a client may ask for.
const MAX_READ: u32 = 32 * 1024 * 1024;

/// Serves until the client ends. Blocking.
pub(super) fn serve(mut stream: impl Read + Write, mut reader: Reader) -> io::Result<()> {
    if !negotiate(&mut stream)? {
        return Ok(());
    }
    let mut answer = Vec::new();
    loop {
        let Some(request) = request(&mut stream)? else { return Ok(()) };
        answer.clear();
        answer.extend_from_slice(&ANSWER_MAGIC.to_be_bytes());
        answer.extend_from_slice(&[0; 4]);
        answer.extend_from_slice(&request.handle);
        let error = match check(&request) {
            Err(error) => error,
            Ok(length) => {
                let head = answer.len();
                answer.resize(head + length, 0);
                let place = answer.get_mut(head..).unwrap_or_default();
                match reader.read(request.offset, place) {
                    Ok(()) => 0,
                    Err(error) => {
                        tracing::debug!(%error, "a read of a machine's disk failed");
                        answer.truncate(head);
                        EIO
                    }
                }
            }
        };
        answer.get_mut(4..8).unwrap_or_default().copy_from_slice(&error.to_be_bytes());
        stream.write_all(&answer)?;
    }
}

struct Request {
    kind: u16,
    handle: [u8; 8],
    offset: u64,
    length: u32,
}

/// Bytes to read, or the protocol's number of what is wrong.
fn check(request: &Request) -> Result<usize, u32> {
    if request.kind != READ {
        return Err(EPERM);
    }
    let end = request.offset.checked_add(u64::from(request.length)).ok_or(EINVAL)?;
    if end > SIZE || request.length > MAX_READ {
        return Err(EINVAL);
    }
    usize::try_from(request.length).map_err(|_| EINVAL)
}

/// `None`: the client has ended.
fn request(stream: &mut impl Read) -> io::Result<Option<Request>> {
    let magic = match array::<4>(stream) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        magic => u32::from_be_bytes(magic?),
    };
    if magic != REQUEST_MAGIC {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let [_flags, kind] = [array::<2>(stream)?, array::<2>(stream)?].map(u16::from_be_bytes);
    let handle = array(stream)?;
    let offset = u64::from_be_bytes(array(stream)?);
    let length = u32::from_be_bytes(array(stream)?);
    // What follows a write would be taken for requests, so its sender is not listened to any more.
    let follows = kind == 1;
    match kind {
        DISCONNECT => Ok(None),
        _ if follows => Err(io::ErrorKind::InvalidData.into()),
        _ => Ok(Some(Request { kind, handle, offset, length })),
    }
}

/// Whether the client goes on to requests.
fn negotiate(stream: &mut (impl Read + Write)) -> io::Result<bool> {
    stream.write_all(MAGIC)?;
    stream.write_all(OPTION_MAGIC)?;
    stream.write_all(&HANDSHAKE_FLAGS.to_be_bytes())?;
    let _client_flags = array::<4>(stream)?;
    for _ in 0..MAX_OPTIONS {
        if array::<8>(stream)? != *OPTION_MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let option = u32::from_be_bytes(array(stream)?);
        let length = u32::from_be_bytes(array(stream)?);
        if length > MAX_OPTION {
            return Err(io::ErrorKind::InvalidData.into());
        }
        io::copy(&mut Read::take(&mut *stream, u64::from(length)), &mut io::sink())?;
        match option {
            OPTION_GO => {
                // Of kind 0: the export's size and flags.
                let mut info = vec![0, 0];
                info.extend_from_slice(&SIZE.to_be_bytes());
                info.extend_from_slice(&EXPORT_FLAGS.to_be_bytes());
                reply(stream, option, REPLY_INFO, &info)?;
                reply(stream, option, REPLY_DONE, &[])?;
                return Ok(true);
            }
            OPTION_ABORT => {
                reply(stream, option, REPLY_DONE, &[])?;
                return Ok(false);
            }
            _ => reply(stream, option, REPLY_UNSUPPORTED, &[])?,
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn reply(stream: &mut impl Write, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut out = Vec::new();
    out.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&u32::try_from(data.len()).unwrap_or(0).to_be_bytes());
    out.extend_from_slice(data);
    stream.write_all(&out)
}

fn array<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
