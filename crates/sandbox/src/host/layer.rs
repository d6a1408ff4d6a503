//! What takes all writes of a sandbox, looked at when it was unmounted: whether anybody has a copy of it.
//!
//! Unmounting takes our mount away. A second mount, in whichever namespace, an open file, a mapping or a
//! descriptor on its way through a socket keeps the file system, and with it all that the task wrote. **A
//! wipe is verified only when the file system itself has ended.**

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cofferdam_contracts::sandbox::{WipeCheck, WipeSubject};

use crate::host::file_system_end::{FileSystem, Witness};
use crate::host::holders;
use crate::host::traces::Traces;

/// Nobody was seen, and nothing proves that there is nobody.
const UNKNOWN: &str = "its holders are unknown: its number is in use again, and by whom cannot \
                       be seen";

/// Failed wipes whose layers are watched on: as many as sessions are held before somebody looks.
const MAX_KEPT: usize = 1_024;

/// A layer that is mounted, before it is unmounted.
pub(crate) struct Layer {
    place: PathBuf,
    own: FileSystem,
    /// File systems that lie on it, and keep it.
    over: Vec<FileSystem>,
    witness: Option<Witness>,
}

impl Layer {
    /// Of what is mounted below a sandbox's directory; `None`: no layer is. One that stays is not watched: whoever holds it
    /// watches it, and this process has one watch for each.
    pub(crate) fn of(
        traces: &Traces,
        points: &[PathBuf],
        taken_off: &[FileSystem],
        stays: bool,
    ) -> Option<Self> {
        let root = Some(&traces.layer).filter(|at| points.contains(at))?;
        let own = FileSystem::of(root).ok()?;
        let shares = traces.shares();
        // What a request names is the host's, and stays.
        let over = points.iter().filter(|point| *point != root && !point.starts_with(&shares));
        let over = over.filter_map(|point| FileSystem::of(point).ok());
        let over = over.chain(taken_off.iter().copied()).collect();
        Some(Self {
            place: traces.layer.clone(),
            own,
            over,
            witness: (!stays).then(|| Witness::of(root)).flatten(),
        })
    }

    /// Whether its end will be told.
    pub(crate) fn is_watched(&self) -> bool {
        self.witness.is_some()
    }

    /// Whether it is gone; call it when it is unmounted and every process of the sandbox has ended.
    pub(crate) fn check(self) -> WipeCheck {
        let (file_system, place) = (self.own.text(), self.place.display().to_string());
        WipeCheck::new(WipeSubject::Layer { file_system, place }, self.look())
    }

    /// What is on record of one that stays: which it is, and that whoever holds it has yet to end it.
    pub(crate) fn stays(self) -> WipeCheck {
        let (file_system, place) = (self.own.text(), self.place.display().to_string());
        let observed = Some("kept: to be sealed, or for the next life".to_owned());
        WipeCheck { looked: WipeSubject::Layer { file_system, place }, ok: true, observed }
    }

    /// Who keeps it, and keeps its watch where somebody does.
    fn look(self) -> Option<String> {
        let holders = holders::left(self.own, &self.over, self.witness.as_ref())?;
        if self.witness.is_none() && holders.is_empty() {
            return Some(UNKNOWN.to_owned());
        }
        keep(self);
        Some(format!("is kept by {}", holders.in_words()))
    }
}

/// Looks again for the layer of a check that failed; `None`: the check does not name one.
pub(crate) fn again(file_system: &str, place: &str) -> Option<Option<String>> {
    let own = FileSystem::parse(file_system)?;
    let place = PathBuf::from(place);
    // Without it another process watched.
    let kept = kept().remove(&place).filter(|layer| layer.own == own);
    let unwatched = || Layer { place, own, over: Vec::new(), witness: None };
    Some(kept.unwrap_or_else(unwatched).look())
}

/// Layers of failed wipes, by their places.
fn kept() -> MutexGuard<'static, HashMap<PathBuf, Layer>> {
    static KEPT: OnceLock<Mutex<HashMap<PathBuf, Layer>>> = OnceLock::new();
    KEPT.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(layer: Layer) {
    let mut kept = kept();
    if layer.witness.is_some() && kept.len() < MAX_KEPT {
        kept.insert(layer.place.clone(), layer);
    }
}
