//! Messages of envd's services by the numbers of their fields, as E2B publishes them (`process.proto`, `filesystem.proto`).
//!
//! Names are those of the protocol's JSON, which the services are written in.

/// A message of envd's services, read and written by its fields' numbers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// As errors name it.
    pub name: &'static str,
    pub fields: &'static [Field],
}

/// A field of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub number: u32,
    pub name: &'static str,
    pub kind: Kind,
    pub rule: Rule,
}

/// What a field holds, and how JSON has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    /// In JSON it is base64.
    Bytes,
    Bool,
    Uint32,
    /// In JSON it is a text of digits.
    Int64,
    /// ZigZag on the wire.
    Sint32,
    /// In JSON it is a name.
    Enum(&'static [EnumName]),
    Message(&'static Message),
    /// In JSON it is a time of RFC 3339.
    Timestamp,
    /// In JSON it is an object of texts.
    Texts,
}

/// A name of an enumeration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EnumName {
    pub name: &'static str,
    pub number: i64,
}

/// How often a field is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Always; on the wire only where it is not the default.
    Always,
    /// Where it is given.
    Given,
    /// Where it is given, in the place of others of its message that have this rule.
    OneOf,
    /// Any number of times.
    Repeated,
}

/// A method's messages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Method {
    pub request: &'static Message,
    pub reply: &'static Message,
}

const fn field(number: u32, name: &'static str, kind: Kind, rule: Rule) -> Field {
    Field { number, name, kind, rule }
}

const fn text(number: u32, name: &'static str) -> Field {
    field(number, name, Kind::Text, Rule::Always)
}

const fn given(number: u32, name: &'static str, kind: Kind) -> Field {
    field(number, name, kind, Rule::Given)
}

const fn one_of(number: u32, name: &'static str, kind: Kind) -> Field {
    field(number, name, kind, Rule::OneOf)
}

const fn message(name: &'static str, fields: &'static [Field]) -> Message {
    Message { name, fields }
}

const fn named(number: i64, name: &'static str) -> EnumName {
    EnumName { name, number }
}

pub(crate) static EMPTY: Message = message("an empty message", &[]);

static SIZE: Message = message(
    "PTY.Size",
    &[field(1, "cols", Kind::Uint32, Rule::Always), field(2, "rows", Kind::Uint32, Rule::Always)],
);

static PTY: Message = message("PTY", &[given(1, "size", Kind::Message(&SIZE))]);

static CONFIG: Message = message(
    "ProcessConfig",
    &[
        text(1, "cmd"),
        field(2, "args", Kind::Text, Rule::Repeated),
        given(3, "envs", Kind::Texts),
        given(4, "cwd", Kind::Text),
    ],
);

static SELECTOR: Message =
    message("ProcessSelector", &[one_of(1, "pid", Kind::Uint32), one_of(2, "tag", Kind::Text)]);

const SELECTED: Field = given(1, "process", Kind::Message(&SELECTOR));

pub(crate) static START: Message = message(
    "StartRequest",
    &[
        given(1, "process", Kind::Message(&CONFIG)),
        given(2, "pty", Kind::Message(&PTY)),
        given(3, "tag", Kind::Text),
        given(4, "stdin", Kind::Bool),
    ],
);

static STARTED: Message =
    message("ProcessEvent.StartEvent", &[field(1, "pid", Kind::Uint32, Rule::Always)]);

static DATA: Message = message(
    "ProcessEvent.DataEvent",
    &[
        one_of(1, "stdout", Kind::Bytes),
        one_of(2, "stderr", Kind::Bytes),
        one_of(3, "pty", Kind::Bytes),
    ],
);

static ENDED: Message = message(
    "ProcessEvent.EndEvent",
    &[
        field(1, "exitCode", Kind::Sint32, Rule::Always),
        field(2, "exited", Kind::Bool, Rule::Always),
        text(3, "status"),
        given(4, "error", Kind::Text),
    ],
);

static EVENT: Message = message(
    "ProcessEvent",
    &[
        one_of(1, "start", Kind::Message(&STARTED)),
        one_of(2, "data", Kind::Message(&DATA)),
        one_of(3, "end", Kind::Message(&ENDED)),
        one_of(4, "keepalive", Kind::Message(&EMPTY)),
    ],
);

pub(crate) static EVENTS: Message =
    message("StartResponse", &[given(1, "event", Kind::Message(&EVENT))]);

pub(crate) static SELECT: Message = message("a request for a process", &[SELECTED]);

pub(crate) static UPDATE: Message =
    message("UpdateRequest", &[SELECTED, given(2, "pty", Kind::Message(&PTY))]);

static INPUT: Message =
    message("ProcessInput", &[one_of(1, "stdin", Kind::Bytes), one_of(2, "pty", Kind::Bytes)]);

pub(crate) static SEND_INPUT: Message =
    message("SendInputRequest", &[SELECTED, given(2, "input", Kind::Message(&INPUT))]);

// E2B numbers this field 2.
static PIECE: Message =
    message("StreamInputRequest.DataEvent", &[given(2, "input", Kind::Message(&INPUT))]);

pub(crate) static STREAM_INPUT: Message = message(
    "StreamInputRequest",
    &[
        one_of(1, "start", Kind::Message(&SELECT)),
        one_of(2, "data", Kind::Message(&PIECE)),
        one_of(3, "keepalive", Kind::Message(&EMPTY)),
    ],
);

const SIGNALS: &[EnumName] =
    &[named(0, "SIGNAL_UNSPECIFIED"), named(15, "SIGNAL_SIGTERM"), named(9, "SIGNAL_SIGKILL")];

pub(crate) static SIGNAL: Message = message(
    "SendSignalRequest",
    &[SELECTED, field(2, "signal", Kind::Enum(SIGNALS), Rule::Always)],
);

static INFO: Message = message(
    "ProcessInfo",
    &[
        given(1, "config", Kind::Message(&CONFIG)),
        field(2, "pid", Kind::Uint32, Rule::Always),
        given(3, "tag", Kind::Text),
    ],
);

pub(crate) static PROCESSES: Message =
    message("ListResponse", &[field(1, "processes", Kind::Message(&INFO), Rule::Repeated)]);

const FILE_TYPES: &[EnumName] = &[
    named(0, "FILE_TYPE_UNSPECIFIED"),
    named(1, "FILE_TYPE_FILE"),
    named(2, "FILE_TYPE_DIRECTORY"),
    named(3, "FILE_TYPE_SYMLINK"),
];

const EVENT_TYPES: &[EnumName] = &[
    named(0, "EVENT_TYPE_UNSPECIFIED"),
    named(1, "EVENT_TYPE_CREATE"),
    named(2, "EVENT_TYPE_WRITE"),
    named(3, "EVENT_TYPE_REMOVE"),
    named(4, "EVENT_TYPE_RENAME"),
    named(5, "EVENT_TYPE_CHMOD"),
];

static ENTRY: Message = message(
    "EntryInfo",
    &[
        text(1, "name"),
        field(2, "type", Kind::Enum(FILE_TYPES), Rule::Always),
        text(3, "path"),
        field(4, "size", Kind::Int64, Rule::Always),
        field(5, "mode", Kind::Uint32, Rule::Always),
        text(6, "permissions"),
        text(7, "owner"),
        text(8, "group"),
        given(9, "modifiedTime", Kind::Timestamp),
        given(10, "symlinkTarget", Kind::Text),
        given(11, "metadata", Kind::Texts),
        given(12, "isSymlink", Kind::Bool),
    ],
);

pub(crate) static ENTRY_REPLY: Message =
    message("a reply with an entry", &[given(1, "entry", Kind::Message(&ENTRY))]);

pub(crate) static PATH: Message = message("a request with a path", &[text(1, "path")]);

pub(crate) static MOVE: Message =
    message("MoveRequest", &[text(1, "source"), text(2, "destination")]);

pub(crate) static LIST_DIR: Message =
    message("ListDirRequest", &[text(1, "path"), field(2, "depth", Kind::Uint32, Rule::Always)]);

pub(crate) static ENTRIES: Message =
    message("ListDirResponse", &[field(1, "entries", Kind::Message(&ENTRY), Rule::Repeated)]);

pub(crate) static WATCH: Message = message(
    "WatchDirRequest",
    &[
        text(1, "path"),
        field(2, "recursive", Kind::Bool, Rule::Always),
        field(3, "includeEntry", Kind::Bool, Rule::Always),
        field(4, "allowNetworkMounts", Kind::Bool, Rule::Always),
    ],
);

static CHANGE: Message = message(
    "FilesystemEvent",
    &[
        text(1, "name"),
        field(2, "type", Kind::Enum(EVENT_TYPES), Rule::Always),
        given(3, "entry", Kind::Message(&ENTRY)),
    ],
);

pub(crate) static WATCHED: Message = message(
    "WatchDirResponse",
    &[
        one_of(1, "start", Kind::Message(&EMPTY)),
        one_of(2, "filesystem", Kind::Message(&CHANGE)),
        one_of(3, "keepalive", Kind::Message(&EMPTY)),
    ],
);

pub(crate) static WATCHER: Message = message("a watcher", &[text(1, "watcherId")]);

pub(crate) static CHANGES: Message = message(
    "GetWatcherEventsResponse",
    &[field(1, "events", Kind::Message(&CHANGE), Rule::Repeated)],
);
