//! What CI looks at in a machine whose processor is emulated, each boot of which takes seconds (`COFFERDAM_TEST_PART=1`).

/// Life and wipe, files, limits, phases.
pub(super) const BEHAVIOURS: [&str; 10] = [
    "a command's exit status, signal and failure to start",
    "environment and working directory, and nothing of the host's",
    "files in: bytes, host file, host directory read-only or copy-on-write",
    "files out: paths that leave their root are refused",
    "no network but loopback",
    "memory beyond the limit is an OOM",
    "an agent that is killed ends its command",
    "an orphan is found, destroyed and evidenced",
    "a phase reaches its listed names; any other is a violation",
    "the next phase ends every earlier connection",
];
