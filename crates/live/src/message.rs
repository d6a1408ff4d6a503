//! What is asked of who holds sandboxes: by messages that are data alone.
//!
//! ```text
//! API --LiveClient::ask(PauseSandbox {..})--> who holds the sandboxes --LiveView--> API
//!     --Guest::ask(StatFile {..})-----------> the agent of one, in one life of it
//! ```
//! **The API's side touches no handle, stream or mount of a sandbox.** Both sides are one process today, and a message is delivered
//! by a call. Each can be written down and read again, which [`Message`] asks for, so that another process can hold. What goes on
//! after an answer is a channel: of bytes, of a command's output, of changes.

use std::fmt::Debug;

use cofferdam_flows::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::live::Live;

/// A message to who holds sandboxes.
pub trait Message: Serialize + DeserializeOwned + Debug + Send + 'static {
    /// Its answer: data, and a channel where something goes on.
    type Reply: Send + 'static;

    /// What its receiver does with it: who sends it has no `Live` to call this with.
    fn answer(self, live: &Live) -> impl Future<Output = Result<Self::Reply>> + Send;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cofferdam_contracts::id::{BuildId, Digest, LiveId, SnapshotId, TemplateId, TenantId};
    use cofferdam_contracts::key::Role;
    use cofferdam_contracts::live::LiveRequest;
    use cofferdam_contracts::sandbox::Egress;
    use cofferdam_contracts::template_build::{BuildPlan, BuildSource, RawStep};
    use cofferdam_ledger::keys::Principal;
    use cofferdam_sandbox::ExecOptions;
    use cofferdam_sandbox::inside::{ExecRequest, Size, User};

    use super::*;
    use crate::*;

    fn is_read_again<M: Serialize + DeserializeOwned + Debug>(message: &M) {
        let text = serde_json::to_string(message).unwrap();
        let resume_spec: M = serde_json::from_str(&text).unwrap();
        assert_eq!(format!("{resume_spec:?}"), format!("{message:?}"));
    }

    #[test]
    fn a_message_that_is_written_down_is_read_again() {
        let who = Principal {
            key_id: "k".to_owned(),
            tenant: TenantId::parse("ann").unwrap(),
            roles: vec![Role::Submitter],
        };
        let id = LiveId::parse(&"a".repeat(20)).unwrap();
        let template = TemplateId::parse(&"t".repeat(20)).unwrap();
        let build = BuildId::parse("00000000-0000-4000-8000-000000000000").unwrap();
        let hash = Digest::parse(&"0".repeat(64)).unwrap();
        let step = |kind: &str, args: &[&str]| RawStep {
            kind: kind.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            files: None,
            force: false,
        };
        let steps = vec![step("RUN", &["true"]), step("ENV", &["A", "b"])];
        let from = BuildSource::Template("base".to_owned());
        let plan = BuildPlan::parse(from, steps, Some("x".to_owned()), None, false).unwrap();
        is_read_again(&CreateSandbox { who: who.clone(), request: LiveRequest::of("base") });
        let options = ResumeOptions::of(Some(5), None, Some(false));
        is_read_again(&ResumeSandbox { who: who.clone(), id: id.clone(), options });
        is_read_again(&ChangeNetwork { who: who.clone(), id: id.clone(), egress: Egress::None });
        is_read_again(&WakeSandbox { id, knock: ResumeRequest::Port(Some("token".to_owned())) });
        let snapshot = SnapshotId::parse(&"b".repeat(20)).unwrap();
        is_read_again(&DeleteSnapshot { who: who.clone(), id: snapshot });
        let asked = BuildRequest {
            name: "mine".parse().unwrap(),
            tags: vec!["v1".to_owned()],
            cpu: None,
            mem_mb: Some(512),
        };
        is_read_again(&OpenBuild { who: who.clone(), asked });
        let (of, tenant) = (template.clone(), who.tenant.clone());
        is_read_again(&StartBuild { who, template: of, build, plan, class_min: None });
        is_read_again(&SendUpload { tenant, key_id: "k".to_owned(), template, hash });
        let request = ExecRequest {
            argv: vec!["true".to_owned()],
            env: [("A".to_owned(), "b".to_owned())].into(),
            cwd: "/".to_owned(),
            timeout_ms: 1,
            stream_limit_bytes: u64::MAX,
            user: Some(User { uid: 0, gid: 0 }),
            groups: Vec::new(),
            stdin_file: None,
            jail: None,
        };
        let terminal = Some(Size { rows: 24, cols: 80 });
        let options = ExecOptions { stdin: true, terminal, service: true, leaves: true };
        is_read_again(&StartCommand { request, options, note: "n".to_owned() });
        let paths = vec!["/a".to_owned()];
        is_read_again(&WatchDirectories { paths, waits: false });
        is_read_again(&AwaitAlive { patience: Duration::from_millis(1) });
    }
}
