//! Tables of probes: one line each, and what a sandbox that holds answers to all of them.

/// Probes of paths: `id`s are the way and the path.
macro_rules! paths {
    ($way:ident, $word:literal, $expected:expr, [$($path:literal)*]) => {
        &[$($crate::entry::Probe {
            id: concat!($word, ":", $path),
            tries: concat!($word, " ", $path),
            expected: $expected,
            run: $crate::entry::Run::Way($crate::attempt::ProbeAttempt::$way($path)),
        }),*]
    };
}

/// Probes of system calls: the name, after a dot what is special, and the first arguments.
macro_rules! calls {
    ($expected:expr, [$($id:literal $number:expr, [$($argument:expr),*];)*]) => {
        &[$($crate::entry::Probe {
            id: concat!("call:", $id),
            tries: concat!("call ", $id),
            expected: $expected,
            run: $crate::entry::Run::Way($crate::attempt::ProbeAttempt::Call(
                $number,
                $crate::table::filled([$($argument),*]),
            )),
        }),*]
    };
}

/// Probes of sockets: family, kind and protocol.
macro_rules! sockets {
    ($expected:expr, [$($id:literal $family:expr, $kind:expr, $protocol:expr;)*]) => {
        &[$($crate::entry::Probe {
            id: concat!("socket:", $id),
            tries: concat!("open a socket of ", $id),
            expected: $expected,
            run: $crate::entry::Run::Way($crate::attempt::ProbeAttempt::Socket($family, $kind, $protocol)),
        }),*]
    };
}

/// The rest are zeros.
pub const fn filled<const N: usize>(first: [libc::c_long; N]) -> super::attempt::Arguments {
    let mut all = [0; 6];
    let (mut here, mut rest) = (all.as_mut_slice(), first.as_slice());
    while let ([slot, later @ ..], [value, others @ ..]) = (here, rest) {
        *slot = *value;
        (here, rest) = (later, others);
    }
    all
}

pub(super) use {calls, paths, sockets};
