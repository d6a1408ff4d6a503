//! System calls whose arguments decide.

use super::call::{Call, ENOSYS, EPERM, call};

/// Every bit of what the kernel reads: all of these arguments have 32.
pub(super) const WHOLE: u32 = u32::MAX;

/// A call that is allowed in any of these cases, and fails with `errno` otherwise.
pub(super) struct CallRule {
    pub call: Call,
    pub cases: &'static [Case],
    pub errno: u32,
}

/// Holds if the argument's `bits` are one of `values`, and, where there is an `and`, that other argument is its value.
pub(super) struct Case {
    pub argument: u32,
    pub bits: u32,
    pub values: &'static [u32],
    pub and: Option<(u32, u32)>,
}

const fn case(argument: u32, bits: u32, values: &'static [u32]) -> Case {
    Case { argument, bits, values, and: None }
}

const EAFNOSUPPORT: u32 = 97;

/// `CLONE_NEWNS`, `NEWCGROUP`, `NEWUTS`, `NEWIPC`, `NEWUSER`, `NEWPID`, `NEWNET`: a user namespace would give back every
/// capability, and a task needs no other. (`NEWTIME` only exists in `clone3`, whose flags lie where no filter looks.)
const NEW_NAMESPACES: u32 = 0x7e02_0000;

/// `AF_UNIX`, `AF_INET`, `AF_INET6`. Above all `AF_VSOCK` must not be there: it reaches the hypervisor of a virtual
/// host whatever the network namespace, and `AF_ALG` and most others are only there to be exploited.
const FAMILIES: &[u32] = &[1, 2, 10];
/// `AF_NETLINK`, for `NETLINK_ROUTE` (0) alone: others tell of the host's devices and tasks.
const NETLINK: Case = Case { argument: 0, bits: WHOLE, values: &[16], and: Some((2, 0)) };

/// All that a program does with a file but `F_SETLEASE` (1024), with which it makes every other opener of the file wait,
/// and `F_NOTIFY` (1026), with which it hears what others do in a directory.
const FCNTL: &[u32] = &[
    0, 1, 2, 3, 4, 5, 6, 7, // duplicate, flags, POSIX locks
    8, 9, 10, 11, 15, 16, 17, // who gets the signals
    36, 37, 38,   // locks of an open file
    1025, // F_GETLEASE
    1028, 1029, 1030, // created here?, cancelled locks, duplicate with close-on-exec
    1031, 1032, 1033, 1034, // size of a pipe, seals
    1035, 1036, 1037, 1038, // how long written data lives
];

/// Everything but `SO_RCVBUF` (8) of `SOL_SOCKET` (1): what another level or option has of bits that those two have not.
/// The kernel does not count what a socket queues, so it stays at the host's default (decision 0055). Levels have
/// nine bits, options eight.
const OPTIONS: &[Case] = &[
    case(1, 0x001, &[0]),
    case(1, 0x002, &[0x002]),
    case(1, 0x004, &[0x004]),
    case(1, 0x008, &[0x008]),
    case(1, 0x010, &[0x010]),
    case(1, 0x020, &[0x020]),
    case(1, 0x040, &[0x040]),
    case(1, 0x080, &[0x080]),
    case(1, 0x100, &[0x100]),
    case(2, 0x08, &[0]),
    case(2, 0x01, &[0x01]),
    case(2, 0x02, &[0x02]),
    case(2, 0x04, &[0x04]),
    case(2, 0x10, &[0x10]),
    case(2, 0x20, &[0x20]),
    case(2, 0x40, &[0x40]),
    case(2, 0x80, &[0x80]),
];
/// Done, as far as the caller sees: the kernel itself gives less than was asked for and says nothing.
const IGNORED: u32 = 0;

/// The two that leave the process as it is: `PER_LINUX`, and "which?".
const PERSONALITIES: &[u32] = &[0, u32::MAX];

const fn ruled(call: Call, cases: &'static [Case], errno: u32) -> CallRule {
    CallRule { call, cases, errno }
}

/// `S_ISUID` and `S_ISGID`.
const SET_ID: u32 = 0o6000;
/// `O_CREAT` and the bit that is `O_TMPFILE`'s alone: without them the mode is not looked at.
const MAKES: u32 = 0o100 | 0o20_000_000;

const fn mode(call: Call, cases: &'static [Case]) -> CallRule {
    ruled(call, cases, EPERM)
}

const SECOND: &[Case] = &[case(1, SET_ID, &[0])];
const THIRD: &[Case] = &[case(2, SET_ID, &[0])];

/// In a sandbox that writes through to the host: no file of its becomes set-user-id, not even for a moment.
pub(super) const WITHOUT_SET_ID: &[CallRule] = &[
    mode(call!(SYS_fchmod), SECOND),
    mode(call!(SYS_fchmodat), THIRD),
    mode(call!(SYS_fchmodat2), THIRD),
    mode(call!(SYS_mkdirat), THIRD),
    mode(call!(SYS_mknodat), THIRD),
    mode(call!(SYS_openat), &[case(2, MAKES, &[0]), case(3, SET_ID, &[0])]),
    // Its mode lies where no filter looks; libraries fall back to `openat`.
    ruled(call!(SYS_openat2), &[], ENOSYS),
];

/// Those that only x86-64 has.
#[cfg(target_arch = "x86_64")]
pub(super) const OLD_WITHOUT_SET_ID: &[CallRule] = &[
    mode(call!(SYS_chmod), SECOND),
    mode(call!(SYS_creat), SECOND),
    mode(call!(SYS_mkdir), SECOND),
    mode(call!(SYS_mknod), SECOND),
    mode(call!(SYS_open), &[case(1, MAKES, &[0]), case(2, SET_ID, &[0])]),
];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OLD_WITHOUT_SET_ID: &[CallRule] = &[];

/// Bits of an id beyond the 65,536 that a sandbox has; the last one is set in -1, which leaves an owner as it is.
pub(super) const BEYOND: u32 = 0xffff_0000;
pub(super) const LAST: u32 = 0x8000_0000;

/// The owner is an id that the sandbox has, or -1; one of the upper half fails as the kernel has it.
const OWNED_BY_SECOND: &[Case] = &[case(1, BEYOND, &[0]), case(1, LAST, &[LAST])];
const OWNED_BY_THIRD: &[Case] = &[case(2, BEYOND, &[0]), case(2, LAST, &[LAST])];

/// In a sandbox with ids of its own: a file is given to an id that no process there can have. The file stays whose it is, and
/// the caller, mostly an archiver, hears nothing (decision 0140).
pub(super) const WITH_OWN_IDS: &[CallRule] = &[
    ruled(call!(SYS_fchown), OWNED_BY_SECOND, IGNORED),
    ruled(call!(SYS_fchownat), OWNED_BY_THIRD, IGNORED),
];

/// Those that only x86-64 has.
#[cfg(target_arch = "x86_64")]
pub(super) const OLD_WITH_OWN_IDS: &[CallRule] = &[
    ruled(call!(SYS_chown), OWNED_BY_SECOND, IGNORED),
    ruled(call!(SYS_lchown), OWNED_BY_SECOND, IGNORED),
];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OLD_WITH_OWN_IDS: &[CallRule] = &[];

pub(super) const ALL: &[CallRule] = &[
    ruled(call!(SYS_clone), &[case(0, NEW_NAMESPACES, &[0])], EPERM),
    ruled(call!(SYS_fcntl), &[case(1, WHOLE, FCNTL)], EPERM),
    ruled(call!(SYS_personality), &[case(0, WHOLE, PERSONALITIES)], EPERM),
    ruled(call!(SYS_setsockopt), OPTIONS, IGNORED),
    ruled(call!(SYS_socket), &[case(0, WHOLE, FAMILIES), NETLINK], EAFNOSUPPORT),
    ruled(call!(SYS_socketpair), &[case(0, WHOLE, FAMILIES)], EAFNOSUPPORT),
];
