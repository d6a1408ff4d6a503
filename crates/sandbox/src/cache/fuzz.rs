//! Bases as an agent that was taken over may send them.

use std::fs;
use std::io::{Seek as _, Write as _};

use cofferdam_hostile::fuzz;

use super::bounds::{Bounds, Usage};
use super::error::CacheError;
use super::unpack::unpack;

#[test]
fn fuzz_a_base_is_unpacked_inside_its_directory_or_refused() {
    fuzz!("base", 500, |bytes: &[u8]| {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        fs::create_dir(&root).unwrap();
        let mut tar = tempfile::tempfile().unwrap();
        tar.write_all(bytes).unwrap();
        tar.rewind().unwrap();
        let mut usage = Usage::new(Bounds { bytes: 1 << 20, entries: 100 });
        let _: Result<(), CacheError> = unpack(&root, tar, &mut usage);
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
    });
}
