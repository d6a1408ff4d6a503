//! Images that services of tenants run from: pulled from registries, and kept for each tenant by digest.
//!
//! ```text
//! tag --resolve (when the plan is compiled)--> digest --pull--> <state>/pulled/<sha256 of the tenant>/images  (a store of its own)
//! ```
//! A tenant never finds another one's image, so nothing tells it what others use. An image is kept under the digest that the plan
//! names; the least recently used go beyond [`MAX_IMAGES`] or [`MAX_KEPT_BYTES`].

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use cofferdam_ambient::clock;
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::image_reference::ImageReference;
use cofferdam_contracts::service::ServiceImage;
use tokio::sync::Mutex;

use super::error::{ImageError, at};
use super::manifest::Settings;
use super::name::ImageName;
use super::pull;
use super::resolve::ImageRoot;
use super::store::{Images, StoreBounds};
use crate::host::live;
use crate::host::task::blocking;

/// Below the state directory.
pub(crate) const PULLED: &str = "pulled";
/// Images that are kept for one tenant: the versions that its recipes use.
const MAX_IMAGES: usize = 16;
/// Bytes of their layers, as the registry has them.
const MAX_KEPT_BYTES: u64 = 16 << 30;
/// Bytes of one image's layers, as the registry has them; databases in use have less than 1 GiB.
const MAX_PULL_BYTES: u64 = 4 << 30;
/// Bytes of their files, and entries: databases in use have at most 2 GiB in some 50,000.
const MAX_ROOT_BYTES: u64 = 8 << 30;
const MAX_ROOT_ENTRIES: u64 = 300_000;
const BOUNDS: StoreBounds = StoreBounds {
    blob_bytes: MAX_PULL_BYTES,
    layer_bytes: MAX_ROOT_BYTES,
    layer_entries: MAX_ROOT_ENTRIES,
    of_all_layers: true,
};
/// A pull ends by then: 4 GiB at 7 MiB a second.
const PATIENCE: Duration = Duration::from_secs(600);
/// A tag is looked up by then.
const LOOK_UP: Duration = Duration::from_secs(30);
/// Pulls of one image wait for each other, and few others do by chance.
static TURNS: [Mutex<()>; 64] = [const { Mutex::const_new(()) }; 64];

/// An image on this host, ready for a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRoot {
    /// For the record.
    pub image: ServiceImage,
    /// Its root, environment, working directory and user.
    pub root: ImageRoot,
    /// What runs before the command.
    pub entrypoint: Vec<String>,
    /// What runs where the service gives no command.
    pub cmd: Vec<String>,
}

/// Images of a request's services, by the names of the services.
pub type ServiceRoots = BTreeMap<String, ServiceRoot>;

/// Asks the registry what a reference stands for now, and pins it.
///
/// # Errors
/// The registry does not answer within 30 s, or does not have it.
pub async fn pin(reference: &ImageReference) -> Result<ImageReference, ImageError> {
    if reference.digest().is_some() {
        return Ok(reference.clone());
    }
    let text = reference.to_string();
    let digest = within(LOOK_UP, reference, pull::look_up(&text)).await?;
    Ok(reference.pinned(digest))
}

/// The images of one tenant on this host.
#[derive(Debug, Clone)]
pub struct TenantImages {
    state_dir: PathBuf,
    dir: String,
}

impl TenantImages {
    /// Those of a state directory.
    #[must_use]
    pub fn of(state_dir: &Path, tenant: &TenantId) -> Self {
        let dir = digest_bytes(tenant.as_str().as_bytes()).to_string();
        Self { state_dir: state_dir.to_owned(), dir }
    }

    /// The image of a pinned reference, from the registry unless this tenant has it here.
    ///
    /// # Errors
    /// The reference has no digest; the registry does not give it within 10 min; the image exceeds the bounds of this host, or is
    /// hostile.
    pub async fn pull(&self, reference: &ImageReference) -> Result<ServiceRoot, ImageError> {
        let text = reference.to_string();
        let pinned = reference.digest().cloned();
        let digest = pinned.ok_or_else(|| ImageError::malformed(&*text, "it has no digest"))?;
        let name = ImageName::parse(digest.as_str())?;
        let turn =
            u8::from_str_radix(digest.as_str().get(..2).unwrap_or_default(), 16).unwrap_or(0);
        let turn = TURNS.get(usize::from(turn) % TURNS.len());
        let _turn = match turn {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        let images = blocking({
            let all = self.clone();
            move || all.open()
        })
        .await?;
        let here = blocking({
            let (images, name, text) = (images.clone(), name.clone(), text.clone());
            move || found(&images, &name, text, 0)
        })
        .await;
        if !matches!(here, Err(ImageError::Unknown(_))) {
            return here;
        }
        let pull = images.pull_counted(&text, Some(&name));
        let (_, fetched) = within(PATIENCE, reference, pull).await?;
        blocking(move || {
            evict(&images, &name)?;
            found(&images, &name, text, fetched)
        })
        .await
    }

    fn open(&self) -> Result<Images, ImageError> {
        let pulled = self.state_dir.join(PULLED);
        let own = pulled.join(&self.dir);
        for dir in [&pulled, &own] {
            live::private_dir(dir).map_err(at(dir))?;
        }
        Images::bounded(&own, BOUNDS)
    }
}

/// Holds a question to a registry against a time.
async fn within<T>(
    limit: Duration,
    reference: &ImageReference,
    asked: impl Future<Output = Result<T, ImageError>>,
) -> Result<T, ImageError> {
    tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| {
        Err(ImageError::Late { reference: reference.to_string(), seconds: limit.as_secs() })
    })
}

/// An image that is here. It counts as used from now on.
fn found(
    images: &Images,
    name: &ImageName,
    reference: String,
    fetched_bytes: u64,
) -> Result<ServiceRoot, ImageError> {
    let (root, settings) = images.rooted(name)?;
    let named = images.names.path(name);
    let now = u64::try_from(clock::now_ms()).unwrap_or(0);
    let used = FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_millis(now));
    let touched = File::options().write(true).open(&named).and_then(|file| file.set_times(used));
    touched.map_err(at(&named))?;
    let record = images.list()?.into_iter().find(|record| record.name == name.as_str());
    let record = record.ok_or_else(|| ImageError::Unknown(name.to_string()))?;
    let Settings { entrypoint, cmd, .. } = settings;
    let image =
        ServiceImage { reference, digest: record.digest, bytes: record.bytes, fetched_bytes };
    Ok(ServiceRoot { image, root, entrypoint, cmd })
}

/// Removes what was not used for longest, until the rest is within the bounds. What a sandbox runs on stays.
fn evict(images: &Images, newest: &ImageName) -> Result<(), ImageError> {
    let mut all = Vec::new();
    for record in images.list()? {
        let name = ImageName::parse(&record.name)?;
        let path = images.names.path(&name);
        let used = fs::metadata(&path).and_then(|found| found.modified()).map_err(at(&path))?;
        all.push((used, name, record.bytes));
    }
    all.sort_unstable_by_key(|a| a.0);
    let mut bytes: u64 = all.iter().map(|(_, _, bytes)| bytes).sum();
    let mut count = all.len();
    for (_, name, size) in all {
        if count <= MAX_IMAGES && bytes <= MAX_KEPT_BYTES {
            break;
        }
        if name == *newest {
            continue;
        }
        match images.remove(&name) {
            Ok(()) => {
                (count, bytes) = (count.saturating_sub(1), bytes.saturating_sub(size));
            }
            Err(ImageError::InUse(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
