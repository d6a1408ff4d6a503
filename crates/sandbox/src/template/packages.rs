//! Packages of PyPI for a root, by this machine's own pip and its configuration. Wheels only: nothing of them runs here.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;

use super::program::run;
use crate::images::error::{ImageError, at};

/// What the interpreter needs, and what its users expect of E2B's; within a major version each, so that a build of next year is
/// like this one. Matplotlib is E2B's minor version: `e2b_charts` reads what later ones call otherwise. Left out of E2B's
/// list are what takes hundreds of megabytes each (gensim, spacy, opencv, numba with librosa) and what needs a browser.
const PACKAGES: [&str; 27] = [
    "ipykernel>=7,<8",
    "jupyter_client>=8,<9",
    "bash_kernel>=0.10,<0.11",
    "e2b_charts>=1,<2",
    "aiohttp>=3,<4",
    "beautifulsoup4>=4,<5",
    "imageio>=2,<3",
    "joblib>=1,<2",
    "lxml>=5,<7",
    "matplotlib>=3.10,<3.11",
    "nltk>=3,<4",
    "numpy>=2,<3",
    "openpyxl>=3,<4",
    "orjson>=3,<4",
    "pandas>=2,<4",
    "pillow>=11,<13",
    "plotly>=6,<7",
    "pytest>=8,<10",
    "python-docx>=1,<2",
    "pytz",
    "requests>=2,<3",
    "scikit-learn>=1,<2",
    "scipy>=1,<2",
    "seaborn>=0.13,<0.14",
    "sympy>=1,<2",
    "xarray>=2024",
    "xlrd>=2,<3",
];
/// Directories of the largest packages. They are a copy of their own in the image: one copy has a bound of bytes.
const LARGE: [&str; 5] = ["plotly", "scipy", "scipy.libs", "sklearn", "sympy"];
/// Kinds of wheels that Debian 12's C library runs, the newest first.
const PLATFORMS: [&str; 4] =
    ["manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014"];

/// Version of the interpreter of a root, such as `3.11`, by what `/usr/bin/python3` links to.
///
/// # Errors
/// The root has no python3.
pub(super) fn python_of(root: &Path) -> Result<String, ImageError> {
    let path = root.join("usr/bin/python3");
    let target = fs::read_link(&path).map_err(at(&path))?;
    let version =
        target.to_str().and_then(|target| target.rsplit('/').next()?.strip_prefix("python"));
    let version = version.filter(|text| text.bytes().all(|b| b.is_ascii_digit() || b == b'.'));
    version.map(str::to_owned).ok_or_else(|| {
        ImageError::malformed("/usr/bin/python3 of the base", "its link names no version")
    })
}

/// Installs the packages for a root's python into a directory.
///
/// # Errors
/// This machine has no pip, or its index does not have them.
pub(super) async fn install(
    python: &str,
    into: &Path,
    note: &mut (dyn FnMut(&str) + Send),
) -> Result<(), ImageError> {
    let words = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-warn-conflicts",
        "--root-user-action=ignore",
        "--only-binary=:all:",
        "--no-compile",
        "--implementation=cp",
        "--python-version",
        python,
    ];
    let mut args: Vec<OsString> = words.map(OsString::from).into();
    let arch = std::env::consts::ARCH;
    args.extend(PLATFORMS.map(|kind| OsString::from(format!("--platform={kind}_{arch}"))));
    args.extend([OsString::from("--target"), into.as_os_str().to_owned()]);
    args.extend(PACKAGES.map(OsString::from));
    let args: Vec<&OsStr> = args.iter().map(OsString::as_os_str).collect();
    run("python3", &args, "", note).await?;
    prune(into)
}

/// Moves what of [`LARGE`] is in a directory to another one.
///
/// # Errors
/// A directory that cannot be moved.
pub(super) fn part(from: &Path, to: &Path) -> Result<(), ImageError> {
    for name in LARGE {
        let (from, to) = (from.join(name), to.join(name));
        if from.is_dir() {
            fs::rename(&from, &to).map_err(at(&from))?;
        }
    }
    Ok(())
}

/// Removes the packages' own tests, and programs whose first line names this machine's python.
fn prune(into: &Path) -> Result<(), ImageError> {
    let bin = into.join("bin");
    if bin.is_dir() {
        fs::remove_dir_all(&bin).map_err(at(&bin))?;
    }
    let mut open = vec![into.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).map_err(at(&dir))? {
            let entry = entry.map_err(at(&dir))?;
            let path = entry.path();
            if !entry.file_type().map_err(at(&path))?.is_dir() {
                continue;
            }
            match entry.file_name() == "tests" {
                true => fs::remove_dir_all(&path).map_err(at(&path))?,
                false => open.push(path),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_and_programs_of_packages_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["bin", "a/tests/b", "a/testing"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        prune(dir.path()).unwrap();
        let there = |name: &str| dir.path().join(name).exists();
        assert_eq!(["bin", "a/tests", "a/testing"].map(there), [false, false, true]);
    }

    #[test]
    fn a_roots_python_is_known_by_its_link() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        assert!(python_of(root.path()).is_err());
        std::os::unix::fs::symlink("python3.11", root.path().join("usr/bin/python3")).unwrap();
        assert_eq!(python_of(root.path()).unwrap(), "3.11");
    }
}
