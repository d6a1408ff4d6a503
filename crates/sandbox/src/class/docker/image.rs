//! The image of every container: mount points and the agent, named by its own content, made once.

use std::io;
use std::sync::OnceLock;

use bollard::Docker;
use bollard::body_full;
use bollard::query_parameters::CreateImageOptionsBuilder;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::Digest;
use futures_util::TryStreamExt as _;

use super::client::{EngineError, is_missing};
use crate::host::guest::{AGENT, AGENT_PATH};

/// Where the sandbox's root is put before it becomes the root.
pub(super) const ROOT: &str = "/sandbox";
const REPOSITORY: &str = "cofferdam-sandbox";
/// Of the image's bytes: they are packed for the first sandbox, and again only where an engine lacks them.
static DIGEST: OnceLock<Digest> = OnceLock::new();
const DIRS: [&str; 7] = [".cofferdam", "dev", "etc", "proc", "sandbox", "sys", "tmp"];

/// The name of the image, which the engine has afterwards.
pub(super) async fn ensure(docker: &Docker) -> Result<String, EngineError> {
    let fault = |source| EngineError::Refused { what: "making the image of sandboxes", source };
    let packed = || {
        archive().map_err(|source| EngineError::Files {
            what: "packing",
            path: AGENT_PATH.into(),
            source,
        })
    };
    let digest = match DIGEST.get() {
        Some(digest) => digest,
        None => {
            let digest = digest_bytes(&packed()?);
            DIGEST.get_or_init(|| digest)
        }
    };
    let name = format!("{REPOSITORY}:{digest}");
    match docker.inspect_image(&name).await {
        Ok(_) => return Ok(name),
        Err(error) if !is_missing(&error) => return Err(fault(error)),
        Err(_) => {}
    }
    let bytes = packed()?;
    let wanted = CreateImageOptionsBuilder::default()
        .from_src("-")
        .repo(REPOSITORY)
        .tag(digest.as_str())
        .build();
    let made = docker.create_image(Some(wanted), Some(body_full(bytes.into())), None);
    made.try_collect::<Vec<_>>().await.map_err(fault)?;
    Ok(name)
}

/// The same bytes for the same agent: no times, no owners but root.
fn archive() -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let header = |kind, mode, size| {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header.set_mtime(0);
        header
    };
    for dir in DIRS {
        let mut header = header(tar::EntryType::Directory, 0o755, 0);
        tar.append_data(&mut header, format!("{dir}/"), io::empty())?;
    }
    let size = u64::try_from(AGENT.len()).map_err(io::Error::other)?;
    let mut header = header(tar::EntryType::Regular, 0o555, size);
    tar.append_data(&mut header, AGENT_PATH.trim_start_matches('/'), AGENT)?;
    tar.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_the_same_bytes_each_time_and_holds_nothing_but_mount_points_and_the_agent() {
        let bytes = archive().unwrap();
        assert_eq!(bytes, archive().unwrap());
        let mut read = tar::Archive::new(bytes.as_slice());
        let names: Vec<String> = read
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names.len(), DIRS.len() + 1);
        assert_eq!(names.last().unwrap(), ".cofferdam/agent");
        assert!(names.contains(&format!("{}/", ROOT.trim_start_matches('/'))));
    }
}
