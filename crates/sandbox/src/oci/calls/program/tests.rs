//! The program against the lists, call by call.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::super::{allow_list, deny_list, filter, rules};
use super::*;

const USUAL: Needs = Needs { no_set_id: false, own_ids: false, roots: false };
const STRICT: Needs = Needs { no_set_id: true, own_ids: false, roots: false };
const OWN: Needs = Needs { no_set_id: false, own_ids: true, roots: false };
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

/// What the kernel's interpreter does with these instructions.
fn run(program: &[libc::sock_filter], arch: u32, number: u32, args: [u64; 6]) -> u32 {
    let mut data = number.to_ne_bytes().to_vec();
    data.extend(arch.to_ne_bytes());
    data.extend(0_u64.to_ne_bytes());
    args.iter().for_each(|arg| data.extend(arg.to_ne_bytes()));
    let word = |at: usize| u32::from_ne_bytes(data[at..at + 4].try_into().unwrap());
    let (mut at, mut a) = (0, 0);
    loop {
        let libc::sock_filter { code, jt, jf, k } = program[at];
        let code = u32::from(code);
        at += 1;
        let jump = |yes: bool| usize::from(if yes { jt } else { jf });
        if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS {
            a = word(usize::try_from(k).unwrap());
        } else if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K {
            a &= k;
        } else if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K {
            at += jump(a == k);
        } else if code == libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K {
            at += jump(a >= k);
        } else if code == libc::BPF_JMP | libc::BPF_JA {
            at += usize::try_from(k).unwrap();
        } else {
            assert_eq!(code, libc::BPF_RET | libc::BPF_K);
            return k;
        }
    }
}

fn verdict(number: libc::c_long, args: [u64; 6]) -> u32 {
    static PROGRAM: LazyLock<Vec<libc::sock_filter>> = LazyLock::new(|| program(USUAL).unwrap());
    run(&PROGRAM, THIS_ARCH, u32::try_from(number).unwrap(), args)
}

fn every_call() -> Vec<Call> {
    let ruled = rules::ALL.iter().map(|rule| rule.call);
    let denied = [deny_list::COMMON, deny_list::OLD, deny_list::ROOTS];
    let lists = [allow_list::COMMON, allow_list::OLD].into_iter().chain(denied);
    lists.into_iter().flatten().copied().chain(ruled).collect()
}

#[test]
fn no_call_stands_on_two_lists() {
    let all = every_call();
    let names: BTreeSet<&str> = all.iter().map(|call| call.name).collect();
    let numbers: BTreeSet<_> = all.iter().map(|call| call.number).collect();
    assert_eq!((names.len(), numbers.len()), (all.len(), all.len()));
}

#[test]
fn l4_the_program_says_of_every_number_what_the_lists_say() {
    let program = program(USUAL).unwrap();
    let of = |number: u32| run(&program, THIS_ARCH, number, [0; 6]);
    let within = |lists: &[&[Call]], number: u32| {
        lists.iter().copied().flatten().any(|call| call.number == libc::c_long::from(number))
    };
    for number in 0..1_000 {
        let wanted = match number {
            _ if within(&[allow_list::COMMON, allow_list::OLD], number) => ALLOW,
            _ if within(&[deny_list::COMMON, deny_list::OLD, deny_list::ROOTS], number) => {
                errno(EPERM)
            }
            _ if rules::ALL.iter().any(|rule| rule.call.number == libc::c_long::from(number)) => {
                continue;
            }
            _ => errno(ENOSYS),
        };
        assert_eq!(of(number), wanted, "{number}");
    }
    for number in [FOREIGN - 1, u32::MAX >> 2] {
        assert_eq!(of(number), errno(ENOSYS));
    }
    for number in [FOREIGN, FOREIGN + 1, u32::MAX] {
        assert_eq!(of(number), libc::SECCOMP_RET_KILL_PROCESS);
    }
    assert_eq!(run(&program, 0x4000_0003, 0, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
}

/// Arguments that a rule could be walked around with have bits that the kernel does not read.
const HIGH: u64 = 1 << 32;

#[test]
fn r40_an_owner_that_no_process_can_be_is_answered_and_not_set() {
    let program = program(OWN).unwrap();
    let own = |number: libc::c_long, owner: u64| {
        let (second, third) = match number {
            libc::SYS_fchownat => (0, owner),
            _ => (owner, 0),
        };
        let args = [3, second, third, 0, 0, 0];
        run(&program, THIS_ARCH, u32::try_from(number).unwrap(), args)
    };
    let minus_one = u64::from(u32::MAX);
    for number in [libc::SYS_fchown, libc::SYS_fchownat] {
        for owner in [0, 1_000, 65_535, minus_one, u64::MAX, 1 << 31, HIGH | 1_000] {
            assert_eq!(own(number, owner), ALLOW, "{owner:x}");
        }
        for owner in [65_536, 1_516_583_083, (1 << 31) - 1, HIGH | 65_536] {
            assert_eq!(own(number, owner), errno(0), "{owner:x}");
        }
    }
    assert_eq!(verdict(libc::SYS_fchown, [3, 65_536, 0, 0, 0, 0]), ALLOW, "the host's own ids");
    let listed = filter(OWN)["syscalls"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|rule| rule["names"] == json!(["fchownat"]) && rule["errnoRet"] == json!(0))
        .count();
    assert_eq!(listed, 15);
}

#[test]
fn h7_arguments_decide_by_the_bits_that_the_kernel_reads() {
    let fcntl = |command: u64| verdict(libc::SYS_fcntl, [0, command, 0, 0, 0, 0]);
    for command in [0, 1, 3, 4, 6, 38, 1_030, 1_033, HIGH | 3] {
        assert_eq!(fcntl(command), ALLOW, "{command}");
    }
    for command in [1_024, 1_026, HIGH | 1_024, HIGH | 1_026, 5_000] {
        assert_eq!(fcntl(command), errno(EPERM), "{command}");
    }
    let socket =
        |family: u64, protocol: u64| verdict(libc::SYS_socket, [family, 1, protocol, 0, 0, 0]);
    for (family, protocol) in [(1, 0), (2, 6), (10, 17), (16, 0)] {
        assert_eq!(socket(family, protocol), ALLOW, "{family} {protocol}");
    }
    for (family, protocol) in [(16, 15), (16, HIGH | 15), (17, 0), (38, 0), (40, 0), (HIGH | 40, 0)]
    {
        assert_eq!(socket(family, protocol), errno(97), "{family} {protocol}");
    }
    let first = |number, value: u64| verdict(number, [value, 0, 0, 0, 0, 0]);
    assert_eq!(first(libc::SYS_clone, 0x11), ALLOW);
    for flag in
        [0x2_0000_u64, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000]
    {
        assert_eq!(first(libc::SYS_clone, flag | 0x11), errno(EPERM), "{flag:x}");
    }
    for (value, wanted) in
        [(0, ALLOW), (0xffff_ffff, ALLOW), (8, errno(EPERM)), (0x4_0000, errno(EPERM))]
    {
        assert_eq!(first(libc::SYS_personality, value), wanted, "{value:x}");
    }
}

#[test]
fn s6_a_receive_buffer_stays_as_it_is_and_every_other_option_is_set() {
    let of = |level: u64, option: u64| verdict(libc::SYS_setsockopt, [3, level, option, 0, 4, 0]);
    for (level, option) in [(1, 8), (HIGH | 1, 8), (1, HIGH | 8), (HIGH | 1, HIGH | 8)] {
        assert_eq!(of(level, option), errno(0), "{level:x} {option:x}");
    }
    for option in (0..256).filter(|option| *option != 8) {
        assert_eq!(of(1, option), ALLOW, "{option}");
    }
    for level in (0..512).filter(|level| *level != 1) {
        assert_eq!(of(level, 8), ALLOW, "{level}");
    }
}

#[test]
fn m4_no_mode_makes_a_set_id_file_where_the_host_is_written() {
    let program = program(STRICT).unwrap();
    let of = |number: libc::c_long, args: [u64; 4]| {
        let [a, b, c, d] = args;
        run(&program, THIS_ARCH, u32::try_from(number).unwrap(), [a, b, c, d, 0, 0])
    };
    for (mode, wanted) in
        [(0o755, ALLOW), (0o1777, ALLOW), (0o4755, errno(EPERM)), (HIGH | 0o2000, errno(EPERM))]
    {
        for number in [libc::SYS_fchmod, libc::SYS_chmod, libc::SYS_mkdir, libc::SYS_creat] {
            assert_eq!(of(number, [3, mode, 0, 0]), wanted, "{number} {mode:o}");
        }
        for number in
            [libc::SYS_fchmodat, libc::SYS_fchmodat2, libc::SYS_mkdirat, libc::SYS_mknodat]
        {
            assert_eq!(of(number, [3, 0, mode, 0]), wanted, "{number} {mode:o}");
        }
        for making in [0o100, 0o20_200_000, 0o101] {
            assert_eq!(of(libc::SYS_openat, [3, 0, making, mode]), wanted, "{making:o} {mode:o}");
            assert_eq!(of(libc::SYS_open, [0, making, mode, 0]), wanted, "{making:o} {mode:o}");
        }
        // What an unused argument happens to hold decides nothing.
        assert_eq!(of(libc::SYS_openat, [3, 0, 0o2, mode]), ALLOW);
        assert_eq!(of(libc::SYS_open, [0, 0o200_000, mode, 0]), ALLOW);
    }
    assert_eq!(of(libc::SYS_openat2, [3, 0, 0, 24]), errno(ENOSYS));
    assert_eq!(verdict(libc::SYS_fchmod, [3, 0o4755, 0, 0, 0, 0]), ALLOW);
}

#[test]
fn what_the_configuration_allows_is_what_the_program_allows() {
    for needs in [USUAL, STRICT, Needs { roots: true, ..USUAL }] {
        agree(needs);
    }
}

#[test]
fn a_root_is_changed_only_where_services_have_roots_of_their_own() {
    let of = |needs| {
        let compiled = program(needs).unwrap();
        run(&compiled, THIS_ARCH, u32::try_from(libc::SYS_chroot).unwrap(), [0; 6])
    };
    assert_eq!((of(USUAL), of(OWN)), (errno(EPERM), errno(EPERM)));
    assert_eq!(of(Needs { roots: true, ..OWN }), ALLOW);
}

fn agree(needs: Needs) {
    let compiled = program(needs).unwrap();
    let verdict = |number: libc::c_long, args: [u64; 6]| {
        run(&compiled, THIS_ARCH, u32::try_from(number).unwrap(), args)
    };
    let filter = filter(needs);
    let rules = filter["syscalls"].as_array().unwrap();
    let allows = |name: &str, args: [u64; 6]| {
        rules.iter().filter(|rule| rule["action"] == "SCMP_ACT_ALLOW").any(|rule| {
            let named = rule["names"].as_array().unwrap().iter().any(|one| one == name);
            let none = Vec::new();
            let all = rule["args"].as_array().unwrap_or(&none);
            named
                && all.iter().all(|arg| {
                    assert_eq!(arg["op"], "SCMP_CMP_MASKED_EQ");
                    let at = usize::try_from(arg["index"].as_u64().unwrap()).unwrap();
                    args[at] & arg["value"].as_u64().unwrap() == arg["valueTwo"].as_u64().unwrap()
                })
        })
    };
    let values = [
        0,
        1,
        2,
        3,
        8,
        10,
        15,
        16,
        17,
        38,
        40,
        1_024,
        1_025,
        1_026,
        1_030,
        0x1000_0000,
        0x7e02_0011,
        0xffff_ffff,
    ];
    let values: Vec<u64> = values.into_iter().flat_map(|value| [value, value | HIGH]).collect();
    for call in every_call() {
        let name = call.name.strip_prefix("SYS_").unwrap();
        for first in &values {
            for (second, third) in
                values.iter().map(|value| (*value, 0)).chain([(1, 15), (1, HIGH)])
            {
                let args = [*first, second, third, 0, 0, 0];
                let program = verdict(call.number, args) == ALLOW;
                assert_eq!(program, allows(name, args), "{name} {args:?}");
            }
        }
    }
    assert_eq!(filter["defaultAction"], "SCMP_ACT_ERRNO");
}
