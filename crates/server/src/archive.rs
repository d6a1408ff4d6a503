//! Archives that are written as they are read: nothing of them is held but what the end of a zip lists. Pure.
//!
//! ```text
//! begin(entry) -> bytes of its head, then its content in pieces, end() ... finish()
//! ```

mod tar;
mod zip;

use cofferdam_contracts::artifact::ArtifactMode;
use cofferdam_contracts::run_file::FilesFormat;

use self::tar::TarWriter;
use self::zip::ZipWriter;
pub(crate) use self::zip::{MAX_LIST_BYTES, listed_bytes};

/// Why an archive cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArchiveError {
    /// The content is not as long as the entry said.
    #[error("an entry has other bytes than it announced")]
    Size,
    /// The path does not fit the archive's header.
    #[error("a path of {0} bytes has no place in an archive")]
    Name(usize),
    /// A zip lists its entries at its end, and they are held until then.
    #[error("the list of a zip's entries is larger than {} MiB", MAX_LIST_BYTES / (1024 * 1024))]
    List,
    /// A header could not be written.
    #[error("an archive's header could not be written: {0}")]
    Header(String),
}

/// What an archive says of a file before its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArchiveEntry {
    /// Its path, as its bytes are; relative, without a `/` at the end.
    pub name: Vec<u8>,
    pub mode: ArtifactMode,
    /// Of a link where it leads.
    pub target: Option<Vec<u8>>,
    /// Bytes of its content; of a link its target's.
    pub size: u64,
    /// When it was kept, in seconds since the epoch.
    pub modified_s: u64,
    /// CRC-32 of its content, where that is known before.
    pub crc: Option<u32>,
}

/// An archive that is being written.
pub(crate) enum ArchiveWriter {
    Tar(TarWriter),
    Zip(ZipWriter),
}

impl ArchiveWriter {
    /// One in this form; `None`: it is a list.
    pub(crate) fn of(format: FilesFormat) -> Option<Self> {
        match format {
            FilesFormat::List => None,
            FilesFormat::Tar => Some(Self::Tar(TarWriter::default())),
            FilesFormat::Zip => Some(Self::Zip(ZipWriter::default())),
        }
    }

    pub(crate) fn begin(
        &mut self,
        entry: ArchiveEntry,
        out: &mut Vec<u8>,
    ) -> Result<(), ArchiveError> {
        match self {
            Self::Tar(tar) => tar.begin(entry, out),
            Self::Zip(zip) => zip.begin(entry, out),
        }
    }

    /// A piece of the entry's content.
    pub(crate) fn data(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ArchiveError> {
        match self {
            Self::Tar(tar) => tar.data(bytes, out),
            Self::Zip(zip) => zip.data(bytes, out),
        }
    }

    /// Ends the entry.
    pub(crate) fn end(&mut self, out: &mut Vec<u8>) -> Result<(), ArchiveError> {
        match self {
            Self::Tar(tar) => tar.end(out),
            Self::Zip(zip) => zip.end(out),
        }
    }

    /// Ends the archive.
    pub(crate) fn finish(self, out: &mut Vec<u8>) {
        match self {
            Self::Tar(_) => tar::finish(out),
            Self::Zip(zip) => zip.finish(out),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn entry(name: &[u8], mode: ArtifactMode, content: &[u8]) -> ArchiveEntry {
        let size = u64::try_from(content.len()).unwrap();
        let target = (mode == ArtifactMode::Link).then(|| content.to_vec());
        ArchiveEntry {
            name: name.to_vec(),
            mode,
            target,
            size,
            modified_s: 1_700_000_000,
            crc: None,
        }
    }

    #[test]
    fn content_that_is_not_as_announced_ends_the_archive() {
        for format in [FilesFormat::Tar, FilesFormat::Zip] {
            let mut out = Vec::new();
            let mut writer = ArchiveWriter::of(format).unwrap();
            writer.begin(entry(b"a", ArtifactMode::File, b"abc"), &mut out).unwrap();
            writer.data(b"ab", &mut out).unwrap();
            assert_eq!(writer.end(&mut out), Err(ArchiveError::Size), "{format:?}");
            let mut writer = ArchiveWriter::of(format).unwrap();
            writer.begin(entry(b"a", ArtifactMode::File, b"abc"), &mut out).unwrap();
            assert_eq!(writer.data(b"abcd", &mut out), Err(ArchiveError::Size), "{format:?}");
        }
        assert!(ArchiveWriter::of(FilesFormat::List).is_none());
    }
}
