//! Templates of long-lived sandboxes: an image of this host, and the program that a sandbox of it begins with.
//!
//! ```text
//! build base                 Debian's packages --> a root --> image template/base
//! build code-interpreter-v1  template/base + PyPI's packages + our service --> image template/code-interpreter-v1
//! add NAME                   any image of this host
//!
//! <state>/images/templates/NAME.json   image by its digest, start and ready command, ports, user, memory
//! ```
//! **A template is named only after its image is whole**, and it pins that image: a sandbox of it starts with those
//! bytes or not at all. Templates are the host's, as its images are: every tenant may use them, and only the host's
//! admin makes them.

mod bootstrap;
mod build;
mod packages;
mod program;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use cofferdam_ambient::{clock, random};
use cofferdam_contracts::id::TemplateName;
use cofferdam_contracts::template_build::TemplateUser;
use serde::{Deserialize, Serialize};

use crate::host::live;
use crate::images::error::{ImageError, at};
use crate::images::manifest::parse;
use crate::images::name::{ImageName, ImageRef, text_of};
use crate::images::store::Images;
pub use build::{BUILDS, TemplateNote, build_template};

/// Ports that a template may say it serves: for people who read the list.
const MAX_PORTS: usize = 16;
/// Bytes of a start or ready command: a line.
const MAX_COMMAND: usize = 4_096;
/// Extension of a template's file.
const FILE: &str = "json";

/// What a long-lived sandbox is made of and begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Template {
    /// Of this form; 1.
    pub schema_version: u32,
    /// What a creation asks for.
    pub name: TemplateName,
    /// Its image, `NAME@sha256:HEX`.
    pub image: String,
    /// Shell command of the program that it begins with; it may go on for as long as the sandbox lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// Shell command that succeeds once the program can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// Ports that the program serves, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// As whom both commands run.
    pub user: TemplateUser,
    /// Memory in MiB that a sandbox of it has at least.
    #[serde(default, rename = "memMB", skip_serializing_if = "Option::is_none")]
    pub mem_mb: Option<u64>,
    /// When it was made, ms since the epoch.
    pub created_at_ms: i64,
}

/// What a template begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateProgram {
    /// Shell command of its program.
    pub start: Option<String>,
    /// Shell command that succeeds once the program can be used.
    pub ready: Option<String>,
    /// Ports that the program serves.
    pub ports: Vec<u16>,
    /// As whom both commands run.
    pub user: TemplateUser,
    /// Memory in MiB that a sandbox has at least.
    pub mem_mb: Option<u64>,
}

impl TemplateProgram {
    /// # Errors
    /// The first field that is out of its bounds.
    fn check(&self) -> Result<(), ImageError> {
        let wrong = |what: &str, why: String| Err(ImageError::malformed(what, why));
        for (what, command) in
            [("the start command", &self.start), ("the ready command", &self.ready)]
        {
            let fits = |text: &String| {
                !text.trim().is_empty() && text.len() <= MAX_COMMAND && !text.contains('\0')
            };
            if !command.as_ref().is_none_or(fits) {
                return wrong(what, format!("it has 1 to {MAX_COMMAND} bytes without NUL"));
            }
        }
        if self.ready.is_some() && self.start.is_none() {
            return wrong("the ready command", "nothing is started that could be ready".to_owned());
        }
        if self.ports.len() > MAX_PORTS || self.ports.contains(&0) {
            return wrong("the ports", format!("at most {MAX_PORTS}, each 1 to 65535"));
        }
        Ok(())
    }
}

/// The template of this name in a state directory; `None`: there is no such file.
///
/// # Errors
/// Its file cannot be read, or is not a template.
pub fn template(state_dir: &Path, name: &TemplateName) -> Result<Option<Template>, ImageError> {
    read(&dir(state_dir).join(name.as_str()).with_extension(FILE))
}

/// Every template of a state directory, in the order of the names.
///
/// # Errors
/// A file cannot be read, or is not a template.
pub fn templates(state_dir: &Path) -> Result<Vec<Template>, ImageError> {
    listed(&dir(state_dir))
}

fn listed(dir: &Path) -> Result<Vec<Template>, ImageError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at(dir)(error)),
    };
    let mut all = Vec::new();
    for entry in entries {
        let path = entry.map_err(at(dir))?.path();
        if path.extension().is_some_and(|extension| extension == FILE) {
            // Removed since it was listed, where it is not there.
            all.extend(read(&path)?);
        }
    }
    all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

fn dir(state_dir: &Path) -> PathBuf {
    state_dir.join("images").join("templates")
}

fn read(path: &Path) -> Result<Option<Template>, ImageError> {
    match fs::read(path) {
        Ok(bytes) => parse("a template's file", &bytes).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at(path)(error)),
    }
}

impl Images {
    fn templates_dir(&self) -> Result<PathBuf, ImageError> {
        let dir = self.dir.join("templates");
        live::private_dir(&dir).map_err(at(&dir))?;
        Ok(dir)
    }

    /// Makes a template of an image that is here, in place of the one of this name.
    ///
    /// # Errors
    /// No such image, or a field out of its bounds.
    pub fn template_add(
        &self,
        name: &TemplateName,
        image: &str,
        begin: &TemplateProgram,
    ) -> Result<Template, ImageError> {
        begin.check()?;
        let named = self.names.find(&ImageRef::parse(image)?)?;
        let template = Template {
            schema_version: 1,
            name: name.clone(),
            image: format!("{}@{}", named.name, text_of(&named.manifest)),
            start: begin.start.clone(),
            ready: begin.ready.clone(),
            ports: begin.ports.clone(),
            user: begin.user,
            mem_mb: begin.mem_mb,
            created_at_ms: clock::now_ms(),
        };
        let (bytes, _) = crate::images::manifest::written(&template)?;
        let dir = self.templates_dir()?;
        let draft = dir.join(format!("{}.draft", random::secret_hex(8)));
        let path = dir.join(name.as_str()).with_extension(FILE);
        let write = || -> io::Result<()> {
            let mut file = File::create_new(&draft)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&draft, &path)
        };
        write().map_err(at(&path))?;
        Ok(template)
    }

    /// Removes an image, unless a template is made of it: that would be listed and make no sandbox.
    ///
    /// # Errors
    /// As [`Images::remove`]; or templates are made of it.
    pub fn image_remove(&self, name: &ImageName) -> Result<(), ImageError> {
        let made = self.templates_of(name)?;
        if !made.is_empty() {
            let templates = made.join(", ");
            return Err(ImageError::OfTemplates { image: name.to_string(), templates });
        }
        self.remove(name)
    }

    /// The names of the templates that are made of an image, whatever its content was then.
    fn templates_of(&self, name: &ImageName) -> Result<Vec<String>, ImageError> {
        let name = name.to_string();
        let is_of = |one: &Template| {
            one.image.split_once('@').map_or(one.image.as_str(), |(of, _)| of) == name
        };
        let all = listed(&self.templates_dir()?)?;
        Ok(all.iter().filter(|one| is_of(one)).map(|one| one.name.to_string()).collect())
    }

    /// Removes a template, and its image where that was built for it and no other template is made of it. `false`: there is none of
    /// this name.
    ///
    /// # Errors
    /// A sandbox runs on its image, or a file cannot be removed.
    pub fn template_remove(&self, name: &TemplateName) -> Result<bool, ImageError> {
        let path = self.templates_dir()?.join(name.as_str()).with_extension(FILE);
        if read(&path)?.is_none() {
            return Ok(false);
        }
        let image = image_name(name)?;
        let is_shared = self.templates_of(&image)?.iter().any(|other| other != name.as_str());
        match is_shared {
            true => {}
            // Before the file: whoever is interrupted here removes the template by a second call.
            false => match self.remove(&image) {
                Ok(()) | Err(ImageError::Unknown(_)) => {}
                Err(error) => return Err(error),
            },
        }
        fs::remove_file(&path).map_err(at(&path))?;
        Ok(true)
    }
}

/// The image that is built for a template.
fn image_name(name: &TemplateName) -> Result<ImageName, ImageError> {
    ImageName::parse(&format!("template/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_kept_within_its_bounds_and_pins_its_image() {
        let state = tempfile::tempdir().unwrap();
        let images = Images::open(state.path()).unwrap();
        let name = TemplateName::parse("tool").unwrap();
        let good = TemplateProgram {
            start: Some("serve".into()),
            ready: Some("true".into()),
            ports: vec![8_000],
            user: TemplateUser::User,
            mem_mb: None,
        };
        let unknown = images.template_add(&name, "nothing", &good);
        assert!(matches!(unknown, Err(ImageError::Unknown(_))), "{unknown:?}");
        for bad in [
            TemplateProgram { start: Some(" ".into()), ..good.clone() },
            TemplateProgram { start: None, ..good.clone() },
            TemplateProgram { ready: Some("x".repeat(MAX_COMMAND + 1)), ..good.clone() },
            TemplateProgram { ports: vec![0], ..good.clone() },
            TemplateProgram { ports: vec![1; MAX_PORTS + 1], ..good.clone() },
        ] {
            let refused = images.template_add(&name, "nothing", &bad);
            assert!(matches!(refused, Err(ImageError::Malformed { .. })), "{refused:?}");
        }
        assert_eq!(template(state.path(), &name).unwrap(), None);
        assert!(templates(state.path()).unwrap().is_empty());
        assert!(!images.template_remove(&name).unwrap());
    }
}
