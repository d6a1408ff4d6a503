//! An initial file system: a cpio archive of the kind "newc", as the kernel's
//! `buffer-format.rst` has it.

/// Kinds of nodes, as in a file's mode.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHARACTER: u32 = 0o020_000;
const MAGIC: &str = "070701";
const TRAILER: &str = "TRAILER!!!";

/// An archive that grows.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    nodes: u32,
}

impl Archive {
    pub fn directory(&mut self, name: &str) {
        self.node(name, DIRECTORY | 0o755, 0, 0, &[]);
    }

    pub fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.node(name, REGULAR | mode, 0, 0, content);
    }

    pub fn device(&mut self, name: &str, major: u32, minor: u32) {
        self.node(name, CHARACTER | 0o600, major, minor, &[]);
    }

    /// Ends the archive with its trailer, and gives its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.node(TRAILER, 0, 0, 0, &[]);
        self.bytes
    }

    fn node(&mut self, name: &str, mode: u32, major: u32, minor: u32, content: &[u8]) {
        self.nodes += 1;
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_size = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        // Number, mode, user, group, links, time, size, device of the archive, device of the node,
        // size of the name, and a sum that this kind does not have.
        let fields = [self.nodes, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0];
        self.bytes.extend_from_slice(MAGIC.as_bytes());
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_what_the_kernel_reads() {
        let mut archive = Archive::default();
        archive.directory("dev");
        archive.device("dev/console", 5, 1);
        archive.file("init", 0o755, b"abc");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.starts_with(b"07070100000001000041ED"));
        let text = String::from_utf8(bytes).unwrap();
        for part in ["dev/console\0", "init\0\0abc\0", "TRAILER!!!\0"] {
            assert!(text.contains(part), "{part}");
        }
        // The device's numbers are the tenth and the eleventh field.
        let at = text.find("dev/console").unwrap() - 110;
        assert_eq!(&text[at + 6 + 9 * 8..at + 6 + 11 * 8], "0000000500000001");
    }
}
