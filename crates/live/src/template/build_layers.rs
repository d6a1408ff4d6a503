//! Layers of builds: files that steps left, from which a later build of the same tenant goes on if it begins with the same steps.
//!
//! ```text
//! key of a step = mark(key of the step before it, the step, what its files unpack to)
//! start: last key with a layer -> its files and its state; the steps behind it are not run
//! steps: a second of work, and twice what keeping cost last time -> files kept, sealed -> layer on record -> on
//! ```
//! **The first key has everything else that a result depends on**: the class, the image or the host's programs, the files
//! of the template below, limits, names, variables, this release. A layer is on record whole or not at all, so one of a build that
//! failed later is as good as any.

use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_ambient::random::secret_hex;
use cofferdam_contracts::id::{Digest, SandboxId, SnapshotId};
use cofferdam_contracts::live::LiveRequest;
use cofferdam_contracts::template_build::{BuildState, BuildStep};
use cofferdam_flows::{Error, Result, config};
use cofferdam_ledger::keys::Principal;
use cofferdam_sandbox::InitialFiles;
use serde_json::{Value, json};

use crate::snapshot::capture::SnapshotPurpose;
use crate::snapshot::eraser::Eraser;
use crate::snapshot::resume_spec::ResumeSpec;
use crate::snapshot::snapshots::Snapshots;
use crate::template::build::{Base, Builds, Contents, Work};
use crate::template::resolved_template::BuildOutput;
use crate::work;

/// Raise it when layers of before must not be used any more.
const VERSION: u32 = 1;
/// Work that is worth a layer: what a build repeats at most, beside steps that cost as much to keep.
const WORTH: Duration = Duration::from_secs(1);
/// And so many times what the last layer of this build cost, so that no build spends most of its time on layers.
const COSTS: u32 = 2;

/// A layer that a build goes on from.
pub(crate) struct BaseLayer {
    pub id: SnapshotId,
    /// Steps that it has behind it.
    pub steps: usize,
    pub state: BuildState,
    pub filling: InitialFiles,
}

/// When a build keeps its next layer.
#[derive(Debug)]
pub(crate) struct Pace {
    since: Stopwatch,
    cost: Duration,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { since: Stopwatch::start(), cost: Duration::ZERO }
    }

    fn is_due(&self) -> bool {
        is_worth(self.since.elapsed(), self.cost)
    }

    fn kept(&mut self, cost: Duration) {
        *self = Self { since: Stopwatch::start(), cost };
    }
}

/// Whether so much work is worth a layer, where the last one cost so much. Pure.
fn is_worth(work: Duration, cost: Duration) -> bool {
    work >= WORTH.max(cost.saturating_mul(COSTS))
}

/// The keys of steps, as far as it is known what they depend on. Pure but for the mark.
fn keys(
    mark: impl Fn(&[u8]) -> Digest,
    input_digest: &Value,
    steps: &[BuildStep],
    contents: &Contents,
) -> Vec<Digest> {
    let mut last = mark(input_digest.to_string().as_bytes());
    let mut all = Vec::with_capacity(steps.len());
    for step in steps {
        let mut step = step.clone();
        if let BuildStep::Copy { files, .. } = &mut step {
            match contents.get(files) {
                Some(Some(content)) => *files = content.clone(),
                _ => break,
            }
        }
        let Ok(said) = serde_json::to_string(&step) else { break };
        last = mark(format!("{last}\n{said}").as_bytes());
        all.push(last.clone());
    }
    all
}

impl Builds {
    /// The keys of a build's steps. None where it is not known what they depend on: then every step runs, and no layer is kept.
    pub(crate) async fn layer_keys(
        &self,
        who: &Principal,
        base: &Base,
        request: &LiveRequest,
        steps: &[BuildStep],
        contents: &Contents,
    ) -> Result<Vec<Digest>> {
        let (Some(host), Ok(vault)) =
            (self.live.0.registry.host(), self.live.0.flows.secrets.vault())
        else {
            return Ok(Vec::new());
        };
        let mut sandbox = work::request(request, &base.template);
        config::settings(&self.live.0.ledger, &who.tenant)
            .await?
            .settle("the sandbox", &mut sandbox)?;
        let name = SandboxId::parse(&format!("sb{}", secret_hex(10)));
        let name = name.map_err(Error::corrupt("id"))?;
        let Ok(input_digest) = host.input_digest(&sandbox, &name) else { return Ok(Vec::new()) };
        let input_digest = json!({
            "version": VERSION, "release": env!("CARGO_PKG_VERSION"), "ground": input_digest, "files": base.files,
            "state": base.state, "limits": sandbox.limits, "net": sandbox.egress,
        });
        Ok(keys(|text| vault.mark(&who.tenant, text), &input_digest, steps, contents))
    }

    /// The longest layer that a build can go on from. One that cannot be used is erased, so that the next build makes another.
    pub(crate) async fn layer_found(
        &self,
        who: &Principal,
        keys: &[Digest],
        image: Option<&String>,
    ) -> Result<Option<BaseLayer>> {
        if keys.is_empty() {
            return Ok(None);
        }
        let place = self.live.0.store.place();
        let found = self.live.0.ledger.layers().longest(&who.tenant, keys, &place).await?;
        let Some((id, steps)) = found else { return Ok(None) };
        let opened = Snapshots::of(&self.live).open(&who.tenant, &id).await;
        match opened {
            Ok((
                ResumeSpec { built: Some(BuildOutput { state, .. }), image: own, .. },
                filling,
            )) if own.as_ref() == image => {
                Ok(Some(BaseLayer { id, steps, state, filling: filling.files_alone() }))
            }
            other => {
                let why =
                    other.err().map_or_else(|| "it is of no build".to_owned(), |e| e.to_string());
                tracing::warn!(layer = %id, why, "a layer of a build cannot be used: its steps run again");
                self.layer_spoiled(&id).await;
                Ok(None)
            }
        }
    }

    /// No build tries this layer again.
    pub(crate) async fn layer_spoiled(&self, layer: &SnapshotId) {
        if let Err(error) = self.live.0.ledger.layers().spoiled(layer).await {
            tracing::warn!(%layer, %error, "a layer that cannot be used is still there");
        }
        Eraser::of(&self.live).clean_up().await;
    }

    /// Keeps the files after so many steps, if these were worth it; the bytes of the layer. Without room for it the build goes on
    /// without one.
    pub(crate) async fn layer_due(
        &self,
        work: &Work,
        pace: &mut Pace,
        state: &BuildState,
        steps: usize,
    ) -> Option<u64> {
        let key = work.keys.get(steps.checked_sub(1)?)?;
        if !pace.is_due() {
            return None;
        }
        let taking = Stopwatch::start();
        let kept = self.layer_keep(work, state, key, steps).await;
        pace.kept(taking.elapsed());
        match kept {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                tracing::info!(build = %work.build.id, %error, "a layer of a build is not kept");
                None
            }
        }
    }

    async fn layer_keep(
        &self,
        work: &Work,
        state: &BuildState,
        key: &Digest,
        steps: usize,
    ) -> Result<u64> {
        let built =
            BuildOutput { state: state.clone(), start: None, ready: None, ..work.built.clone() };
        let kept = Snapshots::of(&self.live).snapshot(&work.held, work.resume_spec(built)).await?;
        let (name, layer) =
            (work.build.name.as_str(), SnapshotPurpose::Layer(work.layer(key, steps)));
        Ok(Snapshots::of(&self.live)
            .record_as(&work.who, &work.held, kept, Some(name), layer)
            .await?
            .bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::canonical::digest_bytes;
    use cofferdam_contracts::template_build::TemplateUser;

    fn run(command: &str) -> BuildStep {
        BuildStep::Run { command: command.into(), user: None }
    }

    fn copy(files: char) -> BuildStep {
        let files = Digest::parse(&files.to_string().repeat(64)).unwrap();
        BuildStep::Copy { from: "a".into(), to: "b".into(), user: None, mode: None, files }
    }

    fn of(input_digest: &Value, steps: &[BuildStep], contents: &Contents) -> Vec<Digest> {
        keys(digest_bytes, input_digest, steps, contents)
    }

    #[test]
    fn a_key_is_of_everything_before_it() {
        let (input_digest, none) = (json!({"files": null}), Contents::new());
        let own = of(&input_digest, &[run("a"), run("b"), run("c")], &none);
        // The same steps, and one more.
        let longer = of(&input_digest, &[run("a"), run("b"), run("c"), run("d")], &none);
        assert_eq!((own.len(), &longer[..3]), (3, &own[..]));
        // From the first difference on nothing is alike.
        let others = [
            of(&json!({"files": "x"}), &[run("a"), run("b"), run("c")], &none),
            of(&input_digest, &[run("x"), run("b"), run("c")], &none),
            of(&input_digest, &[BuildStep::User(TemplateUser::Root), run("b"), run("c")], &none),
        ];
        for other in others {
            assert!(own.iter().all(|key| !other.contains(key)));
        }
        let changed = of(&input_digest, &[run("a"), run("b"), run("x")], &none);
        assert_eq!((&changed[..2], changed[2] == own[2]), (&own[..2], false));
    }

    #[test]
    fn files_count_by_what_they_unpack_to_and_not_by_their_name() {
        let input_digest = json!({});
        let known = |named: char, content: Option<char>| -> Contents {
            let digest = |c: char| Digest::parse(&c.to_string().repeat(64)).unwrap();
            [(digest(named), content.map(digest))].into()
        };
        let steps = |named| [run("a"), copy(named), run("b")];
        let own = of(&input_digest, &steps('1'), &known('1', Some('c')));
        assert_eq!(of(&input_digest, &steps('2'), &known('2', Some('c'))), own);
        let other = of(&input_digest, &steps('1'), &known('1', Some('d')));
        assert_eq!((&other[0], other[1] == own[1]), (&own[0], false));
        // Without it, no step from there on has a key.
        assert_eq!(of(&input_digest, &steps('1'), &known('1', None)), own[..1]);
        assert_eq!(of(&input_digest, &steps('1'), &Contents::new()), own[..1]);
    }

    #[test]
    fn a_layer_is_kept_after_a_second_of_work_that_outweighs_it() {
        let ms = Duration::from_millis;
        assert!(!is_worth(ms(999), ms(0)));
        assert!(is_worth(ms(1_000), ms(400)));
        assert!(!is_worth(ms(1_500), ms(800)));
        assert!(is_worth(ms(1_600), ms(800)));
    }
}
