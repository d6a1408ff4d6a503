//! What is looked for after a wipe: the kinds of things, and each one by what finds it again.
//!
//! ```text
//! WipeSubject --kind, subject--> the two words of a record --read--> the same WipeSubject
//! ```
//! A record keeps the words that it has had from the start; **whoever looks again matches on [`WipeSubject`] and reads
//! no words**.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enum_names::named;

named! {
    /// A kind of thing that is looked for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum WipeKind {
        /// A mount of the sandbox's.
        Mount = "mount",
        /// The file system that took all writes, kept by nobody.
        Layer = "layer",
        /// A control group.
        Cgroup = "cgroup",
        /// A process, several, or the runtime's.
        Process = "process",
        /// Its network namespace.
        Netns = "netns",
        /// A directory of the sandbox on the host, which must be gone.
        Directory = "directory",
        /// What the runtime keeps of it.
        RuntimeState = "runtime-state",
        /// A file of ours in its layer, which the task never saw.
        Sentinel = "sentinel",
        /// Its base, which must be unchanged.
        Base = "base",
        /// The cached dependencies below its layer, which must be unchanged.
        CacheBase = "cache-base",
        /// Set-id bits in what it wrote through to the host.
        SetId = "set-id",
        /// The key of an encrypted layer.
        Key = "key",
        /// The loop device of an encrypted layer's image.
        LoopDevice = "loop-device",
        /// The image of an encrypted layer.
        Image = "image",
        /// The container that an engine held.
        Container = "container",
        /// The sandbox that a provider held, by its id there.
        RemoteSandbox = "remote-sandbox",
        /// The same in the provider's list of ours.
        RemoteListing = "remote-listing",
        /// The file that says which provider held it.
        RemoteMarker = "remote-marker",
        /// Its host, where no worker is alive to look.
        Host = "host",
    }
}

impl PartialEq<&str> for WipeKind {
    fn eq(&self, name: &&str) -> bool {
        self.as_str() == *name
    }
}

/// A process of a host: its pid is given to others later, together with its start it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// Process id, which the kernel reuses once the process is gone.
    pub pid: u32,
    /// When it started, in the kernel's ticks since the host did.
    pub started: u64,
}

impl ProcessIdentity {
    fn text(self) -> String {
        format!("pid {} started {}", self.pid, self.started)
    }

    fn read(text: &str) -> Option<Self> {
        let (pid, started) = text.strip_prefix("pid ")?.split_once(" started ")?;
        Some(Self { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }
}

/// One thing that is looked for. A `String` is a path, or a name that its kind says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WipeSubject {
    /// A mount point.
    Mount(String),
    /// The file system of a writable layer.
    Layer {
        /// Its device and type, as the kernel's tables name it.
        file_system: String,
        /// Where it was mounted.
        place: String,
    },
    /// The directory of a group of ours.
    Cgroup(String),
    /// The groups that an engine made for the container of this id.
    EngineCgroup(String),
    /// What stood for the sandbox.
    Process(ProcessIdentity),
    /// What else was in its group.
    Others(Vec<ProcessIdentity>),
    /// A runtime on its way to the sandbox of this id.
    RuntimeOf(String),
    /// A network namespace, such as `net:[4026531840]`.
    Netns(String),
    /// Path of a directory of the sandbox on the host.
    Directory(String),
    /// The runtime's directory of it.
    RuntimeState(String),
    /// Our file in its layer.
    Sentinel(String),
    /// A base by its name.
    Base(String),
    /// A cached base by its place.
    CacheBase(String),
    /// A source that was written through, as it was named.
    SetId(String),
    /// The key of an encrypted layer.
    Key {
        /// The kernel's name of the key, in hexadecimal.
        identifier: String,
        /// The image that is encrypted by it.
        image: String,
    },
    /// The devices of this image.
    LoopDevice(String),
    /// An encrypted layer's image.
    Image(String),
    /// A container of an engine.
    Container {
        /// Its name there.
        name: String,
        /// The engine's socket.
        engine: String,
    },
    /// A provider's sandbox, by its id there.
    RemoteSandbox {
        /// Our name of it.
        sandbox: String,
        /// The provider's URL.
        provider: String,
    },
    /// A provider's sandbox, in its list of ours.
    RemoteListing {
        /// Our name of it.
        sandbox: String,
        /// The provider's URL.
        provider: String,
    },
    /// The file that says which provider held it.
    RemoteMarker(String),
    /// A host by its id.
    Host(String),
    /// What a record says in words that no later version finds it by.
    Unread {
        /// Kind of the thing, as the record says.
        kind: WipeKind,
        /// Subject of the record, word for word.
        subject: String,
    },
}

const OTHERS: &str = "others of its cgroup: ";
const RUNTIME_OF: &str = "runtime of ";
const ENGINES: &str = "the engine's of ";
const KEY: &str = "fscrypt ";
const OF: &str = " of ";
const OF_ENGINE: &str = " of unix://";
const AT: &str = " at ";

impl WipeSubject {
    /// What kind of thing it is.
    #[must_use]
    pub fn kind(&self) -> WipeKind {
        match self {
            Self::Mount(_) => WipeKind::Mount,
            Self::Layer { .. } => WipeKind::Layer,
            Self::Cgroup(_) | Self::EngineCgroup(_) => WipeKind::Cgroup,
            Self::Process(_) | Self::Others(_) | Self::RuntimeOf(_) => WipeKind::Process,
            Self::Netns(_) => WipeKind::Netns,
            Self::Directory(_) => WipeKind::Directory,
            Self::RuntimeState(_) => WipeKind::RuntimeState,
            Self::Sentinel(_) => WipeKind::Sentinel,
            Self::Base(_) => WipeKind::Base,
            Self::CacheBase(_) => WipeKind::CacheBase,
            Self::SetId(_) => WipeKind::SetId,
            Self::Key { .. } => WipeKind::Key,
            Self::LoopDevice(_) => WipeKind::LoopDevice,
            Self::Image(_) => WipeKind::Image,
            Self::Container { .. } => WipeKind::Container,
            Self::RemoteSandbox { .. } => WipeKind::RemoteSandbox,
            Self::RemoteListing { .. } => WipeKind::RemoteListing,
            Self::RemoteMarker(_) => WipeKind::RemoteMarker,
            Self::Host(_) => WipeKind::Host,
            Self::Unread { kind, .. } => *kind,
        }
    }

    /// Which one, as a record says it.
    #[must_use]
    pub fn subject(&self) -> String {
        match self {
            Self::Mount(text)
            | Self::Cgroup(text)
            | Self::Netns(text)
            | Self::Directory(text)
            | Self::RuntimeState(text)
            | Self::Sentinel(text)
            | Self::Base(text)
            | Self::CacheBase(text)
            | Self::SetId(text)
            | Self::LoopDevice(text)
            | Self::Image(text)
            | Self::RemoteMarker(text)
            | Self::Host(text)
            | Self::Unread { subject: text, .. } => text.clone(),
            Self::Layer { file_system, place } => format!("{file_system}{OF}{place}"),
            Self::EngineCgroup(id) => format!("{ENGINES}{id}"),
            Self::Process(process) => process.text(),
            Self::Others(all) => {
                let all: Vec<String> = all.iter().map(|one| one.text()).collect();
                format!("{OTHERS}{}", all.join(", "))
            }
            Self::RuntimeOf(id) => format!("{RUNTIME_OF}{id}"),
            Self::Key { identifier, image } => format!("{KEY}{identifier}{OF}{image}"),
            Self::Container { name, engine } => format!("{name}{OF_ENGINE}{engine}"),
            Self::RemoteSandbox { sandbox, provider }
            | Self::RemoteListing { sandbox, provider } => format!("{sandbox}{AT}{provider}"),
        }
    }

    /// What a record's two words say.
    #[must_use]
    pub fn read(kind: WipeKind, subject: String) -> Self {
        match kind {
            WipeKind::Mount => Self::Mount(subject),
            WipeKind::Cgroup => match subject.strip_prefix(ENGINES) {
                Some(id) => Self::EngineCgroup(id.to_owned()),
                None => Self::Cgroup(subject),
            },
            WipeKind::Netns => Self::Netns(subject),
            WipeKind::Directory => Self::Directory(subject),
            WipeKind::RuntimeState => Self::RuntimeState(subject),
            WipeKind::Sentinel => Self::Sentinel(subject),
            WipeKind::Base => Self::Base(subject),
            WipeKind::CacheBase => Self::CacheBase(subject),
            WipeKind::SetId => Self::SetId(subject),
            WipeKind::LoopDevice => Self::LoopDevice(subject),
            WipeKind::Image => Self::Image(subject),
            WipeKind::RemoteMarker => Self::RemoteMarker(subject),
            WipeKind::Host => Self::Host(subject),
            WipeKind::Layer
            | WipeKind::Process
            | WipeKind::Key
            | WipeKind::Container
            | WipeKind::RemoteSandbox
            | WipeKind::RemoteListing => {
                let parts = Self::of_parts(kind, &subject);
                parts.unwrap_or(Self::Unread { kind, subject })
            }
        }
    }

    /// Of a kind whose words have parts; `None` where they are others.
    fn of_parts(kind: WipeKind, subject: &str) -> Option<Self> {
        let split = |text: &str, at: &str| {
            text.split_once(at).map(|(one, other)| (one.to_owned(), other.to_owned()))
        };
        Some(match kind {
            WipeKind::Layer => {
                let (file_system, place) = split(subject, OF)?;
                Self::Layer { file_system, place }
            }
            WipeKind::Key => {
                let (identifier, image) = split(subject.strip_prefix(KEY)?, OF)?;
                Self::Key { identifier, image }
            }
            WipeKind::Container => {
                let (name, engine) = split(subject, OF_ENGINE)?;
                Self::Container { name, engine }
            }
            WipeKind::RemoteSandbox => {
                let (sandbox, provider) = split(subject, AT)?;
                Self::RemoteSandbox { sandbox, provider }
            }
            WipeKind::RemoteListing => {
                let (sandbox, provider) = split(subject, AT)?;
                Self::RemoteListing { sandbox, provider }
            }
            WipeKind::Process => {
                match (subject.strip_prefix(RUNTIME_OF), subject.strip_prefix(OTHERS)) {
                    (Some(id), _) => Self::RuntimeOf(id.to_owned()),
                    (None, Some(all)) => Self::Others(
                        all.split(", ").map(ProcessIdentity::read).collect::<Option<_>>()?,
                    ),
                    (None, None) => Self::Process(ProcessIdentity::read(subject)?),
                }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::wipe::WipeCheck;

    const RECORDED: [(&str, &str); 24] = [
        ("mount", "/run/cofferdam/live/sandboxes/sb1/layer"),
        (
            "layer",
            "file system 0:57 id 00000000000000ff of /run/cofferdam/live/sandboxes/sb1/layer",
        ),
        ("cgroup", "/sys/fs/cgroup/cofferdam/0123.sb1"),
        ("cgroup", "the engine's of 4f5058c"),
        ("process", "pid 12 started 3456"),
        ("process", "others of its cgroup: pid 1 started 0, pid 13 started 3457"),
        ("process", "runtime of sb1"),
        ("netns", "net:[4026531840]"),
        ("directory", "/run/cofferdam/live/sandboxes/sb1"),
        ("runtime-state", "/run/cofferdam/live/run/sb1"),
        ("sentinel", "/run/cofferdam/live/sandboxes/sb1/layer/sentinel"),
        ("base", "/var/lib/cofferdam/base/host-0"),
        ("cache-base", "/var/lib/cofferdam/cache/bases/0/layer"),
        ("set-id", "\"/srv/project\""),
        ("key", "fscrypt 00ff of /var/lib/cofferdam/layers/sb1.img"),
        ("loop-device", "/var/lib/cofferdam/layers/sb1.img"),
        ("image", "/var/lib/cofferdam/layers/sb1.img"),
        ("container", "cofferdam-0123.sb1 of unix:///var/run/docker.sock"),
        ("remote-sandbox", "sb1 at https://api.provider.example"),
        ("remote-listing", "sb1 at https://api.provider.example"),
        ("remote-marker", "/var/lib/cofferdam/remote/sb1.json"),
        ("host", "0123"),
        ("process", "what nobody wrote"),
        ("key", "of nothing"),
    ];

    /// The shape of stored rows: neither its fields nor its words change with the types.
    #[test]
    fn a_check_is_read_and_written_as_it_was_recorded() {
        for (kind, subject) in RECORDED {
            for seen in [None, Some("still there")] {
                let mut recorded = json!({"kind": kind, "subject": subject, "ok": seen.is_none()});
                if let Some(seen) = seen {
                    recorded["observed"] = json!(seen);
                }
                let check: WipeCheck = serde_json::from_value(recorded.clone()).unwrap();
                assert_eq!(serde_json::to_value(&check).unwrap(), recorded);
                let known = !matches!(check.looked, WipeSubject::Unread { .. });
                assert_eq!(
                    known,
                    !["what nobody wrote", "of nothing"].contains(&subject),
                    "{subject}"
                );
            }
        }
        let kinds: Vec<&str> = RECORDED.iter().map(|(kind, _)| *kind).collect();
        assert!(
            WipeKind::ALL.iter().all(|kind| kinds.contains(&kind.as_str())),
            "every kind is here"
        );
        let read = |value: Value| serde_json::from_value::<WipeCheck>(value);
        assert!(read(json!({"kind": "thing", "subject": "", "ok": true})).is_err());
    }

    #[test]
    fn processes_are_read_one_by_one() {
        let read = |text: &str| WipeSubject::read(WipeKind::Process, text.to_owned());
        let one = |pid, started| ProcessIdentity { pid, started };
        assert_eq!(read("pid 12 started 3456"), WipeSubject::Process(one(12, 3456)));
        let both = WipeSubject::Others(vec![one(1, 0), one(13, 3457)]);
        assert_eq!(read("others of its cgroup: pid 1 started 0, pid 13 started 3457"), both);
    }
}
