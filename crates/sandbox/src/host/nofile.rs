//! Open files of this process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The kernel's own default for the most that a process may be given (`fs.nr_open`).
const MOST: u64 = 1_048_576;
/// Where the kernel does not say.
const USUAL: u64 = 1_024;

/// Takes as many as this process may have, and says how many that is. Service managers and shells start a program
/// with 1,024, for the sake of those that still use `select`; a sandbox takes a dozen here, and a machine whose disk
/// is read some more. Tasks have limits of their own.
pub(crate) fn raise() -> u64 {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((USUAL, USUAL));
    let wanted = hard.min(MOST);
    if soft < wanted {
        // Where it is refused, what is opened beyond says so.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard);
    }
    hard
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_had_is_taken() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // One fewer, which no test beside this one notices.
        setrlimit(Resource::RLIMIT_NOFILE, hard.min(MOST) - 1, hard).unwrap();
        assert_eq!(raise(), hard);
        let (soft, still) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!((soft, still), (hard.min(MOST), hard));
    }
}
