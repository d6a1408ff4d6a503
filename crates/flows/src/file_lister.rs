//! Files that a recipe lists while its plan is compiled: of the bound content of a directory where there is one, else of the host as it is.

use std::ops::ControlFlow;
use std::path::Path;

use cofferdam_contracts::template::MAX_FANOUT;
use cofferdam_sandbox::{AllowedPaths, HostHandle, HostPath, Links};

/// Entries that one `glob` looks at: a large repository, not a whole disk.
const MAX_GLOB_ENTRIES: usize = 500_000;

/// A bound path with its copy.
#[derive(Debug)]
pub(crate) struct TreeSource {
    /// Path of the host as the plan names it.
    pub source: String,
    pub opened: HostHandle,
}

/// Where files are listed.
#[derive(Debug)]
pub(crate) struct FileLister {
    allowed: AllowedPaths,
    /// Bound paths, each with its copy.
    bound: Vec<TreeSource>,
    /// Whether a plan listed any.
    pub has_listed: bool,
}

impl FileLister {
    /// The host as it is.
    pub(crate) const fn of(allowed: AllowedPaths) -> Self {
        Self { allowed, bound: Vec::new(), has_listed: false }
    }

    /// From now on these copies stand for their sources.
    pub(crate) fn bind(&mut self, bound: Vec<TreeSource>) {
        self.bound = bound;
    }

    /// Files below a directory whose relative path matches, sorted, links not followed. The directory must lie below an allowed root,
    /// since the names that are found become part of the plan.
    pub(crate) fn glob(&self, dir: &str, pattern: &str) -> Result<Vec<String>, String> {
        let matcher = globset::GlobBuilder::new(pattern)
            .literal_separator(true)
            .build()
            .map_err(|e| e.to_string())?
            .compile_matcher();
        let refused = || format!("{dir} is not a directory that this run may read");
        let of_bound = self.bound.iter().filter_map(|TreeSource { source, opened }| {
            Some((opened, Path::new(dir).strip_prefix(source).ok()?))
        });
        // The deepest one is the one that the task sees there.
        let bound = of_bound.min_by_key(|(_, below)| below.components().count());
        let live;
        let (opened, below) = match bound {
            Some((opened, below)) => (opened, below),
            None => {
                // One answer for what is not there and for what is not allowed, so that nothing can be probed.
                let opened = self.allowed.open(&HostPath::said(dir), Links::Beneath);
                live = opened.map_err(|_| refused())?;
                (&live, Path::new(""))
            }
        };
        if !opened.is_dir() {
            return Err(refused());
        }
        let mut found = Vec::new();
        let listed = opened.entries(MAX_GLOB_ENTRIES, &mut |path, is_file| {
            if is_file
                && let Ok(relative) = path.strip_prefix(below)
                && matcher.is_match(relative)
            {
                found.push(relative.to_string_lossy().into_owned());
            }
            if found.len() > MAX_FANOUT {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        listed.map_err(|e| e.to_string())?;
        Ok(found)
    }
}
