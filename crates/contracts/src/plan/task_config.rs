//! What a plan takes of the configuration: profiles, wall times, ceilings; and its rendered texts.

use std::collections::BTreeSet;

use crate::config::ConfigRef;
use crate::profile::{self, Settings};
use crate::recipe::TaskSpec;
use crate::template::{Scope, render};
use crate::timeout::{self, Wall};

use super::fault::Fault;

/// The configuration, and what of it a plan has used.
pub(super) struct Config<'a> {
    pub(super) settings: &'a Settings,
    pub(super) used: BTreeSet<ConfigRef>,
}

/// Which of a profile's wall times.
#[derive(Clone, Copy)]
pub(super) enum WallTimeKind {
    Build,
    Exec,
}

impl WallTimeKind {
    /// The field of a task that writes it.
    const fn field(self) -> &'static str {
        match self {
            Self::Build => "build.timeout",
            Self::Exec => "exec.timeout",
        }
    }
}

impl Config<'_> {
    pub(super) fn profile(&mut self, language: profile::Language) -> Option<profile::Profile> {
        let found = self.settings.profile(language)?;
        self.used.insert(found.source);
        Some(found.value)
    }

    fn profile_ms(&mut self, language: profile::Language, timed: WallTimeKind) -> Option<u64> {
        let found = self.profile(language)?;
        Some(match timed {
            WallTimeKind::Build => found.build_timeout_ms,
            WallTimeKind::Exec => found.exec_timeout_ms,
        })
    }

    /// What was written, or the task's profile.
    pub(super) fn wall(
        &mut self,
        written: Option<&str>,
        spec: &TaskSpec,
        scope: &Scope<'_>,
        timed: WallTimeKind,
    ) -> Result<Option<u64>, Fault> {
        let field = timed.field();
        let Some(written) = written else {
            return Ok(spec.profile.and_then(|language| self.profile_ms(language, timed)));
        };
        let rendered = text(written, scope, field)?;
        Ok(match timeout::read(&rendered).map_err(|e| format!("{field}: {e}"))? {
            Wall::Fixed(duration) => Some(duration.ms()),
            Wall::Profile(language) => self.profile_ms(language, timed),
        })
    }
}

/// A text without late values.
pub(super) fn text(value: &str, scope: &Scope<'_>, field: &str) -> Result<String, Fault> {
    let rendered = render(value, scope).map_err(|e| Fault::of(e, field))?;
    if rendered.contains('\0') {
        return Err(format!("{field}: a NUL character").into());
    }
    Ok(rendered)
}
