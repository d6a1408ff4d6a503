//! Answers as an emulator that was taken over may write them.

use std::fs::File;
use std::io::Write as _;
use std::net::Shutdown;

use cofferdam_hostile::fuzz;

use super::*;

#[test]
fn fuzz_answers_of_an_emulator_are_read_or_refused() {
    let file = File::open("/dev/null").unwrap();
    fuzz!("qmp", |bytes: &[u8]| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let _ = theirs.write(bytes);
        theirs.shutdown(Shutdown::Write).unwrap();
        let limit = Duration::from_secs(10);
        let mut control = Control::new(ours, limit).unwrap();
        // Only an emulator that says `completed` has stored its machine.
        if control.store(file.try_clone().unwrap().into(), limit).is_ok() {
            assert!(bytes.windows(9).any(|part| part == b"completed"));
        }
    });
}
