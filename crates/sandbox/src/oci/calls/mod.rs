//! The system call filter of a container: an allow list.
//!
//! ```text
//! allow_list        -> allowed
//! rules             -> allowed if an argument's case holds, otherwise its errno (0: answered and not done)
//! deny_list         -> EPERM
//! everything else   -> ENOSYS: calls that are newer than this list, or that no task needs
//! another ABI (32 bits, x32) -> killed
//! ```
//! The lists have two forms. A runtime that takes nothing else compiles the one in the OCI configuration at each start,
//! which is most of crun's work; crun takes a program that is compiled already ([`program`]). **Only what allows decides
//! what is safe: in the configuration, rules with an errno of their own are there for the errno.**

mod allow_list;
mod call;
mod deny_list;
mod program;
mod rules;

use serde_json::{Value, json};

pub(crate) use call::EPERM;
use call::{Call, ENOSYS};
use program::annotation;
use rules::{CallRule, Case, WHOLE};

const EAFNOSUPPORT: u32 = 97;
/// Old address families between those that are allowed; see [`rules`].
const OLD_FAMILIES: [u64; 12] = [3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15];
const NETLINK: u64 = 16;
const CLONE_NEWUSER: u64 = 0x1000_0000;
const SETLEASE: u64 = 1_024;
const NOTIFY: u64 = 1_026;
/// `S_ISUID` and `S_ISGID`; `O_CREAT` and `O_TMPFILE`'s own bit.
const SET_ID_BITS: [u64; 2] = [0o4000, 0o2000];
const MAKING_BITS: [u64; 2] = [0o100, 0o20_000_000];

/// The name that a configuration knows a call by.
fn named(call: &Call) -> &'static str {
    call.name.strip_prefix("SYS_").unwrap_or(call.name)
}

fn names<'a>(calls: impl IntoIterator<Item = &'a Call>) -> Vec<&'static str> {
    calls.into_iter().map(named).collect()
}

/// What a filter is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Files of the host are written through, so none may become set-user-id.
    pub no_set_id: bool,
    /// The sandbox has 65,536 ids of its own and no other.
    pub own_ids: bool,
    /// Services have roots of their own, which the agent enters for them.
    pub roots: bool,
}

impl Needs {
    fn ruled(self) -> impl Iterator<Item = &'static CallRule> {
        let more = rules::WITHOUT_SET_ID.iter().chain(rules::OLD_WITHOUT_SET_ID);
        let owners = rules::WITH_OWN_IDS.iter().chain(rules::OLD_WITH_OWN_IDS);
        let more = more.filter(move |_| self.no_set_id);
        rules::ALL.iter().chain(more).chain(owners.filter(move |_| self.own_ids))
    }

    /// Whatever the arguments.
    fn allowed(self) -> impl Iterator<Item = &'static Call> {
        let all = allow_list::COMMON.iter().chain(allow_list::OLD);
        let all = all.chain(deny_list::ROOTS.iter().filter(move |_| self.roots));
        all.filter(move |call| !self.ruled().any(|ruled| ruled.call.number == call.number))
    }
}

fn denied(needs: Needs) -> impl Iterator<Item = &'static Call> {
    let roots = deny_list::ROOTS.iter().filter(move |_| !needs.roots);
    deny_list::COMMON.iter().chain(deny_list::OLD).chain(roots)
}

/// A filter in the two places of an OCI configuration that may hold it.
pub(crate) struct Seccomp {
    /// With the compiled program, where there is one.
    pub annotations: Value,
    /// The value of `linux.seccomp`.
    pub list: Value,
}

/// The filter for a runtime, compiled where it takes that. Where it cannot be compiled the runtime compiles the list, and says why.
pub(crate) fn seccomp(needs: Needs, takes_program: bool) -> Seccomp {
    match takes_program.then(|| annotation(needs)).and_then(Result::ok) {
        Some(annotations) => Seccomp { annotations, list: none_allowed() },
        None => Seccomp { annotations: json!({}), list: filter(needs) },
    }
}

/// Beside a compiled program, which the runtime takes instead: it reads no list of hundreds of calls, and one
/// that overlooked the program would start nothing.
fn none_allowed() -> Value {
    json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": ENOSYS})
}

/// The filter as `linux.seccomp` of an OCI configuration.
fn filter(needs: Needs) -> Value {
    let mut rules = vec![
        json!({"names": names(needs.allowed()), "action": "SCMP_ACT_ALLOW"}),
        refused(&names(denied(needs)), EPERM, None),
        // Docker's engine before 23 knows no default but EPERM, and of that libraries do not fall back to `clone`.
        refused(&["clone3"], ENOSYS, None),
    ];
    for ruled in needs.ruled() {
        let name = named(&ruled.call);
        rules.extend(ruled.cases.iter().flat_map(|case| cases(name, case)));
    }
    rules.extend([
        refused(&["clone"], EPERM, Some(masked(0, CLONE_NEWUSER, CLONE_NEWUSER))),
        refused(&["fcntl"], EPERM, Some(arg(1, "SCMP_CMP_EQ", SETLEASE))),
        refused(&["fcntl"], EPERM, Some(arg(1, "SCMP_CMP_EQ", NOTIFY))),
    ]);
    rules.push(ignored_buffers());
    rules.extend(families());
    rules.extend(set_id(needs));
    rules.extend(foreign_owners(needs));
    json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": ENOSYS, "syscalls": rules})
}

/// A list of refusals alone, for a kernel in user space that has a table of calls of its own.
pub(crate) fn refusals(needs: Needs) -> Value {
    let mut rules = vec![
        refused(&names(denied(needs)), EPERM, None),
        refused(&["clone"], EPERM, Some(masked(0, CLONE_NEWUSER, CLONE_NEWUSER))),
    ];
    rules.extend(families());
    rules.extend(set_id(needs));
    json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})
}

/// One rule for each value: two conditions on one argument cannot stand in one.
fn cases(name: &'static str, case: &Case) -> Vec<Value> {
    let Case { argument, bits, values, and } = case;
    let and = and.map(|(other, value)| masked(other, u64::from(WHOLE), u64::from(value)));
    let of = |value: &u32| {
        let mut args = vec![masked(*argument, u64::from(*bits), u64::from(*value))];
        args.extend(and.clone());
        json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": args})
    };
    values.iter().map(of).collect()
}

/// Modes with a set-id bit, where none is allowed.
fn set_id(needs: Needs) -> Vec<Value> {
    let mut rules = Vec::new();
    let strict = Needs { own_ids: false, ..needs };
    for ruled in strict.ruled().filter(|ruled| !rules::ALL.iter().any(|one| one.call == ruled.call))
    {
        let name = named(&ruled.call);
        match ruled.cases {
            [] => rules.push(refused(&[name], ruled.errno, None)),
            [Case { argument, .. }] => rules.extend(
                SET_ID_BITS
                    .map(|bit| refused(&[name], ruled.errno, Some(masked(*argument, bit, bit)))),
            ),
            [makes, mode, ..] => rules.extend(MAKING_BITS.iter().flat_map(|making| {
                SET_ID_BITS.map(|bit| {
                    let mut rule = refused(&[name], ruled.errno, None);
                    if let Value::Object(fields) = &mut rule {
                        let args = [
                            masked(makes.argument, *making, *making),
                            masked(mode.argument, bit, bit),
                        ];
                        fields.insert("args".into(), json!(args));
                    }
                    rule
                })
            })),
        }
    }
    rules
}

/// `SO_RCVBUF` of `SOL_SOCKET` is answered and not done.
fn ignored_buffers() -> Value {
    let whole = u64::from(WHOLE);
    let mut rule = refused(&["setsockopt"], 0, None);
    if let Value::Object(fields) = &mut rule {
        fields.insert("args".into(), json!([masked(1, whole, 1), masked(2, whole, 8)]));
    }
    rule
}

/// A change to an owner beyond the sandbox's ids is answered and not done.
fn foreign_owners(needs: Needs) -> Vec<Value> {
    let calls = rules::WITH_OWN_IDS.iter().chain(rules::OLD_WITH_OWN_IDS);
    let calls = calls.filter(|_| needs.own_ids);
    // Each bit that makes an id one of these, by itself.
    let foreign = rules::BEYOND & !rules::LAST;
    let bits = (0..u32::BITS).map(|at| 1_u32.rotate_left(at)).filter(move |bit| bit & foreign != 0);
    let of = |ruled: &'static CallRule| {
        let argument = ruled.cases.first().map_or(0, |case| case.argument);
        let name = named(&ruled.call);
        bits.clone().map(move |bit| {
            let mask = u64::from(rules::LAST | bit);
            refused(&[name], ruled.errno, Some(masked(argument, mask, u64::from(bit))))
        })
    };
    calls.flat_map(of).collect()
}

fn families() -> impl Iterator<Item = Value> {
    let above =
        refused(&["socket", "socketpair"], EAFNOSUPPORT, Some(arg(0, "SCMP_CMP_GT", NETLINK)));
    let old = OLD_FAMILIES.into_iter().map(|old| {
        refused(&["socket", "socketpair"], EAFNOSUPPORT, Some(arg(0, "SCMP_CMP_EQ", old)))
    });
    std::iter::once(above).chain(old)
}

fn refused(names: &[&str], errno: u32, arg: Option<Value>) -> Value {
    let mut rule = json!({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno});
    if let (Some(arg), Value::Object(fields)) = (arg, &mut rule) {
        fields.insert("args".into(), json!([arg]));
    }
    rule
}

fn arg(index: u32, op: &str, value: u64) -> Value {
    json!({"index": index, "value": value, "op": op})
}

/// Bits of an argument. The kernel reads 32 of what a filter sees as 64.
fn masked(index: u32, bits: u64, value: u64) -> Value {
    json!({"index": index, "value": bits, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"})
}
