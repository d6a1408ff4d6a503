//! What a sealer says, a line each.

use std::io;

use cofferdam_contracts::id::Digest;
use cofferdam_ledger::snapshots::SealedFile;

/// What a sealer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SealerMessage {
    /// It reads nothing.
    Held,
    /// Its file is whole, and on the disk.
    Sealed(SealedFile),
    /// Bytes of its stream.
    Measured(u64),
    /// There is no room for its file, and it has ended.
    Full,
    /// It could not, and has ended.
    Failed(String),
}

impl SealerMessage {
    /// The line that says it.
    pub(super) fn line(&self) -> String {
        match self {
            Self::Held => "held\n".to_owned(),
            Self::Sealed(SealedFile { bytes, sha256 }) => format!("sealed {bytes} {sha256}\n"),
            Self::Measured(bytes) => format!("measured {bytes}\n"),
            Self::Full => "full\n".to_owned(),
            Self::Failed(why) => format!("failed {}\n", why.replace('\n', " ")),
        }
    }

    /// What an error of sealing is said as.
    pub(super) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::FileTooLarge => Self::Full,
            _ => Self::Failed(error.to_string()),
        }
    }

    /// Why something else is not said.
    pub(super) fn fault(self) -> io::Error {
        match self {
            Self::Full => io::ErrorKind::FileTooLarge.into(),
            Self::Failed(why) => io::Error::other(why),
            said => io::Error::other(format!("a sealer says {said:?} out of turn")),
        }
    }

    /// Reads a line.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        match word {
            "held" => Some(Self::Held),
            "sealed" => {
                let (bytes, sha256) = rest.split_once(' ')?;
                let (bytes, sha256) = (bytes.parse().ok()?, Digest::parse(sha256).ok()?);
                Some(Self::Sealed(SealedFile { bytes, sha256 }))
            }
            "measured" => Some(Self::Measured(rest.parse().ok()?)),
            "full" => Some(Self::Full),
            "failed" => Some(Self::Failed(rest.to_owned())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sealer_says_is_read_back() {
        let digest = Digest::parse(&"a".repeat(64)).unwrap();
        for said in [
            SealerMessage::Held,
            SealerMessage::Sealed(SealedFile { bytes: 7, sha256: digest }),
            SealerMessage::Measured(9),
            SealerMessage::Full,
            SealerMessage::Failed("a device".to_owned()),
        ] {
            assert_eq!(SealerMessage::parse(&said.line()), Some(said));
        }
        assert_eq!(SealerMessage::parse("sealed 7"), None);
    }
}
