//! Streams as a provider elsewhere may write them.

use cofferdam_hostile::fuzz;

use super::frames::MessageFrames;

#[test]
fn fuzz_events_of_a_provider_are_read_however_they_are_cut() {
    fuzz!("connect", |bytes: &[u8]| {
        let mut frames = MessageFrames::default();
        for piece in bytes.chunks(7) {
            frames.push(piece);
            loop {
                match frames.next() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
        }
    });
}
