//! A tar: ustar headers, and a pax header before those whose name, target or size has no place in one.

use cofferdam_contracts::artifact::ArtifactMode;
use tar::{Builder, EntryType, Header};

use super::{ArchiveEntry, ArchiveError};

const BLOCK: usize = 512;
/// Bytes of a name that the header itself has.
const MAX_NAME: usize = 100;
/// Size that eleven octal digits write.
const MAX_SIZE: u64 = 0o777_7777_7777;

/// An archive that is being written.
#[derive(Default)]
pub(crate) struct TarWriter {
    /// Bytes that the entry still announces.
    owed: u64,
    /// Zeros behind the entry's content.
    padding: usize,
}

impl TarWriter {
    pub(super) fn begin(
        &mut self,
        entry: ArchiveEntry,
        out: &mut Vec<u8>,
    ) -> Result<(), ArchiveError> {
        let ArchiveEntry { mut name, mode, target, size, modified_s, .. } = entry;
        let kind = match mode {
            ArtifactMode::File | ArtifactMode::Executable => EntryType::Regular,
            ArtifactMode::Link => EntryType::Symlink,
            ArtifactMode::Directory => EntryType::Directory,
        };
        if kind == EntryType::Directory {
            name.push(b'/');
        }
        let size = if kind == EntryType::Regular { size } else { 0 };
        let target = target.filter(|_| kind == EntryType::Symlink);
        let size_text = size.to_string();
        // What a header of 1988 has no place for, with the word for readers who would take bytes for UTF-8.
        let mut records: Vec<(&str, &[u8])> = Vec::new();
        let is_bare = |text: &[u8]| text.is_ascii() && text.len() <= MAX_NAME;
        let texts = [("path", Some(&name)), ("linkpath", target.as_ref())];
        let texts = texts.into_iter().filter_map(|(key, text)| Some((key, text?.as_slice())));
        records.extend(texts.filter(|(_, text)| !is_bare(text)));
        if records.iter().any(|(_, text)| std::str::from_utf8(text).is_err()) {
            records.insert(0, ("hdrcharset", b"BINARY"));
        }
        if size > MAX_SIZE {
            records.push(("size", size_text.as_bytes()));
        }
        if !records.is_empty() {
            let mut builder = Builder::new(&mut *out);
            let written = builder.append_pax_extensions(records);
            // Dropping it would end the archive.
            std::mem::forget(builder);
            written.map_err(|error| ArchiveError::Header(error.to_string()))?;
        }
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode.permissions());
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(modified_s);
        header.set_size(size.min(MAX_SIZE));
        copy(&mut header.as_old_mut().name, &name);
        if let Some(target) = &target {
            copy(&mut header.as_old_mut().linkname, target);
        }
        header.set_cksum();
        out.extend_from_slice(header.as_bytes());
        self.owed = size;
        let over = usize::try_from(size % 512).unwrap_or(0);
        self.padding = if over == 0 { 0 } else { BLOCK - over };
        Ok(())
    }

    pub(super) fn data(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ArchiveError> {
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.owed = self.owed.checked_sub(size).ok_or(ArchiveError::Size)?;
        out.extend_from_slice(bytes);
        Ok(())
    }

    pub(super) fn end(&mut self, out: &mut Vec<u8>) -> Result<(), ArchiveError> {
        if self.owed > 0 {
            return Err(ArchiveError::Size);
        }
        out.resize(out.len().saturating_add(self.padding), 0);
        Ok(())
    }
}

/// Two empty blocks.
pub(super) fn finish(out: &mut Vec<u8>) {
    out.resize(out.len().saturating_add(2 * BLOCK), 0);
}

/// As many bytes as there is space for; a pax header has the others.
fn copy(field: &mut [u8], text: &[u8]) {
    for (to, from) in field.iter_mut().zip(text) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::ffi::OsStrExt as _;

    use super::super::tests::entry;
    use super::*;

    #[test]
    fn an_archive_reads_as_what_was_put_in() {
        let long = [b"d/".repeat(80), b"last".to_vec()].concat();
        let target = b"../".repeat(60);
        let all: Vec<(&[u8], ArtifactMode, &[u8])> = vec![
            (b"a\nb", ArtifactMode::File, b"one"),
            (b"run", ArtifactMode::Executable, &[7; 513]),
            (b"x\xff\xfe", ArtifactMode::File, b""),
            (&long, ArtifactMode::File, b"far"),
            (b"empty", ArtifactMode::Directory, b""),
            (b"link", ArtifactMode::Link, b"a\nb"),
            (b"long-link", ArtifactMode::Link, &target),
            ("\u{e9}".as_bytes(), ArtifactMode::File, &[0; 512]),
        ];
        let (mut out, mut tar) = (Vec::new(), TarWriter::default());
        for (name, mode, content) in &all {
            tar.begin(entry(name, *mode, content), &mut out).unwrap();
            if !matches!(mode, ArtifactMode::Link) {
                for piece in content.chunks(100) {
                    tar.data(piece, &mut out).unwrap();
                }
            }
            tar.end(&mut out).unwrap();
        }
        finish(&mut out);
        assert_eq!(out.len() % BLOCK, 0);
        let mut archive = tar::Archive::new(out.as_slice());
        let mut read = 0;
        for (found, (name, mode, content)) in archive.entries().unwrap().zip(&all) {
            let mut found = found.unwrap();
            let path = found.path_bytes().into_owned();
            let want = match mode {
                ArtifactMode::Directory => [name, b"/".as_slice()].concat(),
                _ => name.to_vec(),
            };
            assert_eq!(path, want);
            assert_eq!(found.header().mode().unwrap(), mode.permissions());
            if *mode == ArtifactMode::Link {
                let link = found.link_name().unwrap().unwrap();
                assert_eq!(link.as_os_str().as_bytes(), *content);
            } else {
                let mut bytes = Vec::new();
                found.read_to_end(&mut bytes).unwrap();
                assert_eq!(bytes, *content);
            }
            read += 1;
        }
        assert_eq!(read, all.len());
    }

    #[test]
    fn a_size_beyond_eight_gib_is_in_a_pax_header() {
        let (mut out, mut tar) = (Vec::new(), TarWriter::default());
        let large = ArchiveEntry { size: MAX_SIZE + 9, ..entry(b"a", ArtifactMode::File, b"") };
        tar.begin(large, &mut out).unwrap();
        let text = String::from_utf8_lossy(&out);
        assert!(text.contains("size=8589934600\n"), "{text}");
    }
}
