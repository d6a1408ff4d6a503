//! What crosses between host and agent, as either side may write it when it was taken over.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of tests fails its test"
)]

use cofferdam_guest::archive::Unpack;
use cofferdam_guest::door::Door;
use cofferdam_guest::frame::{Decoder, Kind, MAX_PAYLOAD};
use cofferdam_guest::glob::Glob;
use cofferdam_guest::job::JobRequest;
use cofferdam_guest::process::{Control, RunRequest};
use cofferdam_guest::upper::{measure, pack, pass, unpack};
use cofferdam_guest::wire::{
    CollectEnd, CollectRequest, ExecEnd, ExecRequest, FileHead, Health, Refusal, decode_path,
    encode_path,
};
use cofferdam_hostile::fuzz;
use serde::de::DeserializeOwned;

mod trees;

fn read<T: DeserializeOwned>(bytes: &[u8]) {
    let _ = serde_json::from_slice::<T>(bytes);
}

#[test]
fn fuzz_frames_are_read_however_they_are_cut() {
    fuzz!("frames", |bytes: &[u8]| {
        let mut decoder = Decoder::default();
        for piece in bytes.chunks(11) {
            decoder.push(piece);
            loop {
                match decoder.next_frame() {
                    Ok(Some((kind, payload))) => {
                        assert!(kind != Kind::Fill && payload.len() <= MAX_PAYLOAD);
                        read::<ExecEnd>(&payload);
                        read::<CollectEnd>(&payload);
                        read::<FileHead>(&payload);
                    }
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
        }
    });
}

#[test]
fn fuzz_messages_are_read_or_refused() {
    fuzz!("messages", |bytes: &[u8]| {
        read::<ExecRequest>(bytes);
        read::<CollectRequest>(bytes);
        read::<RunRequest>(bytes);
        read::<JobRequest>(bytes);
        read::<Control>(bytes);
        read::<Health>(bytes);
        read::<Refusal>(bytes);
        let text = String::from_utf8_lossy(bytes);
        let _ = Unpack::of_query(&format!("with={text}"));
        let _ = Door::parse(&text);
        if let Some(path) = decode_path(&text) {
            assert_eq!(decode_path(&encode_path(&path)), Some(path));
        }
    });
}

#[test]
fn fuzz_a_glob_matches_or_is_refused() {
    fuzz!("glob", |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let (pattern, path) = text.split_once('\n').unwrap_or((&text, "a/b"));
        if let Ok(glob) = Glob::parse(pattern) {
            let holds = glob.matches(path);
            // A walk must never skip what would have matched.
            if let (true, Some((above, _))) = (holds, path.rsplit_once('/')) {
                assert!(glob.may_match_below(above), "{pattern:?} {path:?}");
            }
        }
    });
}

#[test]
fn fuzz_a_layer_is_unpacked_inside_its_directory_or_refused() {
    fuzz!("layers", 500, |bytes: &[u8]| {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let mut passed = Vec::new();
        let is_passed = pass(&mut &*bytes, &mut passed, 1 << 20).is_ok();
        assert!(bytes.starts_with(&passed));
        // What goes no further is not unpacked either.
        let unpacked = unpack(&root, 0, &mut &*bytes);
        assert!(is_passed || unpacked.is_err());
        assert_eq!(std::fs::read_dir(outer.path()).unwrap().count(), 1);
    });
}

#[test]
fn fuzz_a_tree_comes_back_as_it_was_packed() {
    fuzz!("trees", 100, |bytes: &[u8]| {
        let outer = tempfile::tempdir().unwrap();
        let at = |name: &str| {
            let dir = outer.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            dir
        };
        let (from, to) = (at("from"), at("to"));
        trees::grow(&from, bytes);
        let mut stream = Vec::new();
        pack(&from, 0, &mut stream, &|| true).unwrap();
        assert_eq!(measure(&from, 0, &|| true).unwrap(), u64::try_from(stream.len()).unwrap());
        pass(&mut stream.as_slice(), &mut std::io::sink(), u64::MAX).unwrap();
        unpack(&to, 0, &mut stream.as_slice()).unwrap();
        assert_eq!(trees::seen(&to), trees::seen(&from));
        let mut again = Vec::new();
        pack(&to, 0, &mut again, &|| true).unwrap();
        assert!(again == stream, "what came back is packed alike");
        // And cut off anywhere it is refused.
        let end = bytes.first().map_or(0, |byte| usize::from(*byte) * stream.len() / 256);
        assert!(unpack(&at("cut"), 0, &mut &stream[..end]).is_err());
    });
}
