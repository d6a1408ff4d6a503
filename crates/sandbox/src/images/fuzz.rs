//! Images as a hostile registry may write them.

use std::fs;

use cofferdam_hostile::fuzz;

use super::ImageError;
use super::manifest::{Config, Index, Manifest, parse};
use super::name::ImageName;
use super::store::StoreBounds;
use super::unpack::apply;

/// Small, so that a layer that is a bomb is seen to be one.
const BOUNDS: StoreBounds = StoreBounds {
    blob_bytes: 1 << 20,
    layer_bytes: 1 << 20,
    layer_entries: 100,
    of_all_layers: false,
};

#[test]
fn fuzz_a_layer_is_applied_inside_its_root_or_refused() {
    fuzz!("layer", 500, |bytes: &[u8]| {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        fs::create_dir(&root).unwrap();
        // A lower layer with a link that leads out: nothing may be written through it.
        fs::create_dir(root.join("etc")).unwrap();
        std::os::unix::fs::symlink(outer.path(), root.join("out")).unwrap();
        let _: Result<_, ImageError> = apply(&root, bytes, &BOUNDS);
        let names: Vec<_> = fs::read_dir(outer.path()).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    });
}

#[test]
fn fuzz_documents_of_an_image_are_read_or_refused() {
    fuzz!("manifest", |bytes: &[u8]| {
        if let Ok(index) = parse::<Index>("the index", bytes) {
            let _ = index.choose().and_then(|one| one.digest());
        }
        if let Ok(manifest) = parse::<Manifest>("the manifest", bytes) {
            for one in manifest.layers.iter().chain([&manifest.config]) {
                let _ = one.digest();
            }
        }
        if let Ok(config) = parse::<Config>("the configuration", bytes) {
            let _ = config.diff_ids(config.rootfs.diff_ids.len());
            assert!(config.config.environment().keys().all(|name| !name.is_empty()));
        }
        let _ = ImageName::parse(&String::from_utf8_lossy(bytes));
    });
}
