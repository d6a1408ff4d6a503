//! Options and requests as an emulator that was taken over may write them.

use std::sync::Arc;

use cofferdam_hostile::fuzz;

use super::*;
use crate::machine::disk::{CurrentDisk, Disk};
use crate::machine::erofs::Image;
use crate::machine::tree;

/// Bytes of answers that are taken: one request of 28 bytes may ask for 32 MiB.
const MAX_ANSWERS: usize = 64 * 1024 * 1024;

struct Client<'a> {
    says: &'a [u8],
    room: usize,
}

impl Read for Client<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.says.read(buffer)
    }
}

impl Write for Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.room = self.room.checked_sub(bytes.len()).ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn fuzz_requests_for_a_disk_are_answered_or_end_it() {
    let empty = || Arc::new(Image::of(tree::directory([])).unwrap());
    let disk = Arc::new(Disk::new(empty(), empty()).unwrap());
    fuzz!("nbd", 500, |bytes: &[u8]| {
        let reader = Reader::new(CurrentDisk::new(Arc::clone(&disk)));
        // An error ends the machine, which is its own doing.
        let _ = serve(Client { says: bytes, room: MAX_ANSWERS }, reader);
    });
}
