//! The files of a `copy` step: regular files below the build file's directory alone, read by descriptor.

use std::fs::File;
use std::io::Read as _;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::steps::CopyStep;
use crate::host::hostpath::{Allowed, HostPath, Links, ListError};
use crate::images::error::{ImageError, at};
use crate::spec::input::Input;

/// Files of one `copy`, and their bytes: they pass through memory.
const MAX_FILES: usize = 20_000;
const MAX_BYTES: u64 = 512 * 1024 * 1024;
/// Entries that are looked at: as many that are not regular files would be refused at the first one.
const MAX_ENTRIES: usize = 2 * MAX_FILES;

struct Copies<'a> {
    /// Where they go, inside.
    to: &'a str,
    left: u64,
    inputs: Vec<Input>,
}

/// What the step copies, in the order of the names.
pub(super) fn files(context: &Path, copy: &CopyStep) -> Result<Vec<Input>, ImageError> {
    let asked = context.join(&copy.from);
    let unnamed = || ImageError::hostile(&asked, "has a name that is not UTF-8");
    let allowed = Allowed::new(&[context.to_owned()], Vec::new());
    let allowed = allowed.map_err(|(path, error)| at(&path)(error))?;
    let opened = allowed.open(&HostPath::said(asked.to_str().ok_or_else(unnamed)?), Links::Beneath);
    let out = "is missing, or leads out of the build file's directory";
    let opened = opened.map_err(|_| ImageError::hostile(&asked, out))?;
    let to = copy.to.trim_end_matches('/');
    let mut copies = Copies { to, left: MAX_BYTES, inputs: Vec::new() };
    if !opened.is_dir() {
        let file = opened.file(Path::new("")).map_err(at(&asked))?;
        copies.take(file, "", &asked)?;
        return Ok(copies.inputs);
    }
    let mut fault = None;
    let listed = opened.entries(MAX_ENTRIES, &mut |below, is_file| {
        let path = asked.join(below);
        let taken = match (is_file, below.to_str()) {
            (false, _) => Err(ImageError::hostile(&path, "is neither a file nor a directory")),
            (true, None) => Err(ImageError::hostile(&path, "has a name that is not UTF-8")),
            (true, Some(name)) => {
                let file = opened.file(below).map_err(at(&path));
                file.and_then(|file| copies.take(file, name, &path))
            }
        };
        match taken {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                fault = Some(error);
                ControlFlow::Break(())
            }
        }
    });
    match listed {
        Ok(()) => fault.map_or(Ok(copies.inputs), Err),
        Err(ListError::Many(_)) => Err(too_many()),
        Err(ListError::Deep) => Err(ImageError::hostile(&asked, "nests too deep")),
        Err(ListError::Read { path, source }) => Err(at(&asked.join(path))(source)),
    }
}

impl Copies<'_> {
    fn take(&mut self, file: File, name: &str, path: &Path) -> Result<(), ImageError> {
        let found = file.metadata().map_err(at(path))?;
        let mut bytes = Vec::new();
        file.take(self.left.saturating_add(1)).read_to_end(&mut bytes).map_err(at(path))?;
        let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let what = "the bytes of a copy step";
        self.left =
            self.left.checked_sub(count).ok_or(ImageError::TooLarge { what, limit: MAX_BYTES })?;
        if self.inputs.len() >= MAX_FILES {
            return Err(too_many());
        }
        let path = match name {
            "" => self.to.to_owned(),
            name => format!("{}/{name}", self.to),
        };
        self.inputs.push(Input::Bytes { path, bytes, mode: found.permissions().mode() & 0o777 });
        Ok(())
    }
}

fn too_many() -> ImageError {
    ImageError::TooLarge { what: "the files of a copy step", limit: 20_000 }
}
