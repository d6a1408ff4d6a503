//! Tars as a hostile client may write them.

use std::fs;

use cofferdam_hostile::fuzz;

use super::*;

#[test]
fn fuzz_a_tar_is_unpacked_inside_its_directory_or_refused() {
    fuzz!("tar", 500, |bytes: &[u8]| {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        fs::create_dir(&root).unwrap();
        std::os::unix::fs::symlink(outer.path(), root.join("out")).unwrap();
        let request = Unpack {
            path: root.to_str().unwrap().to_owned(),
            owner: None,
            max_bytes: 1 << 20,
            max_entries: 100,
        };
        let mut unpacker = Unpacker::into(request).unwrap();
        // In pieces of an odd size, as they come by network.
        let fed = bytes.chunks(313).try_for_each(|piece| unpacker.feed(piece));
        let _ = fed.and_then(|()| unpacker.finish());
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
    });
}
