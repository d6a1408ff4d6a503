//! The image that a build begins with, by what a client calls it.

use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::TemplateName;
use cofferdam_contracts::live::BASE_TEMPLATE;
use cofferdam_flows::{Error, Result};
use cofferdam_sandbox::image::{ImageRecord, Images};

use crate::refusal::refuse;
use crate::template::resolved_template::ResolvedTemplate;
use crate::template::templates::Templates;

/// E2B's images that a host's template stands for; the first is what its clients begin with by default.
const STAND_INS: [(&str, &str); 2] =
    [("e2bdev/base", BASE_TEMPLATE), ("e2bdev/code-interpreter", "code-interpreter-v1")];
/// What a name without a registry or a tag means to Docker.
const REGISTRIES: [&str; 3] = ["docker.io/library/", "docker.io/", "library/"];
const LATEST: &str = ":latest";
/// Names that a refusal lists.
const MAX_NAMED: usize = 20;

/// A name without what Docker adds to it. Pure.
fn plain(text: &str) -> &str {
    let found = REGISTRIES.into_iter().find_map(|registry| text.strip_prefix(registry));
    let name = found.unwrap_or(text);
    name.strip_suffix(LATEST).unwrap_or(name)
}

/// The image of this name: exactly, or but for what Docker adds. Pure.
fn chosen<'a>(known: &'a [ImageRecord], text: &str) -> Option<&'a ImageRecord> {
    let exact = known.iter().find(|image| image.name == text);
    exact.or_else(|| known.iter().find(|image| plain(&image.name) == plain(text)))
}

impl Templates {
    /// What a sandbox of this image of the host is made of; for E2B's own images, of the template that stands for it.
    pub(crate) fn image(&self, text: &str) -> Result<ResolvedTemplate> {
        let known = self.images();
        let Some(image) = chosen(&known, text) else {
            let stand_in = STAND_INS.into_iter().find(|(image, _)| *image == plain(text));
            let Some((_, template)) = stand_in else { return Err(unknown(&known, text)) };
            let name = TemplateName::parse(template).map_err(Error::corrupt("template"))?;
            return self.host(&name);
        };
        let name = TemplateName::parse(BASE_TEMPLATE).map_err(Error::corrupt("template"))?;
        let image = format!("{}@sha256:{}", image.name, image.digest);
        Ok(ResolvedTemplate {
            name,
            image: Some(image),
            cpu: None,
            mem_mb: None,
            program: None,
            built: None,
        })
    }

    /// The images of this host, as far as this process may look.
    fn images(&self) -> Vec<ImageRecord> {
        let dir = &self.live.0.state_dir;
        if !dir.join("images").is_dir() {
            return Vec::new();
        }
        let known = Images::open(dir).and_then(|images| images.list());
        known.unwrap_or_else(|error| {
            tracing::warn!(%error, "this host's images cannot be listed");
            Vec::new()
        })
    }
}

fn unknown(known: &[ImageRecord], text: &str) -> Error {
    let text: String = text.chars().take(200).collect();
    let names: Vec<&str> = known.iter().take(MAX_NAMED).map(|image| image.name.as_str()).collect();
    let has = match names.is_empty() {
        true => "it has none".to_owned(),
        false => format!("it has {}", names.join(", ")),
    };
    let why = format!(
        "the image {text:?} is not on this host; {has}. The host's admin adds one with `cofferdam image pull` or \
         `cofferdam image import`; from_template takes \"base\" and other templates"
    );
    refuse(ErrorCode::NotFound, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::id::Digest;

    #[test]
    fn an_image_is_found_under_dockers_names_of_it() {
        let image = |name: &str| ImageRecord {
            name: name.to_owned(),
            digest: Digest::parse(&"0".repeat(64)).unwrap(),
            source: "x".into(),
            created_at_ms: 0,
            bytes: 0,
            layers: 0,
        };
        let known = [image("python:3"), image("docker.io/library/debian"), image("own/x")];
        let found = |text| chosen(&known, text).map(|image| image.name.as_str());
        assert_eq!(found("python:3"), Some("python:3"));
        assert_eq!(found("docker.io/library/python:3"), Some("python:3"));
        assert_eq!(found("debian:latest"), Some("docker.io/library/debian"));
        assert_eq!((found("python"), found("x"), found("../x")), (None, None, None));
        assert!(unknown(&known, "node").to_string().contains("python:3"));
    }
}
