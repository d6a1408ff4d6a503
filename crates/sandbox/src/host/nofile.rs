//! Open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The kernel's own default for the most that a process may be given (`fs.nr_open`).
const MOST: u64 = 1_048_576;

/// Takes as many as this process may have, and says how many that is. Service managers and shells start a program
/// with 1,024, for the sake of those that still use `select`; a sandbox takes a dozen here, and a machine whose disk
/// is read some more. Tasks have limits of their own.
pub(crate) fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let hard = maximum.unwrap_or(u64::MAX);
    let wanted = hard.min(MOST);
    if current.is_some_and(|soft| soft < wanted) {
        // Where it is refused, what is opened beyond says so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
    hard
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_had_is_taken() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let hard = maximum.unwrap_or(u64::MAX);
        // One fewer, which no test beside this one notices.
        let fewer = Rlimit { current: Some(hard.min(MOST) - 1), maximum };
        setrlimit(Resource::Nofile, fewer).unwrap();
        assert_eq!(raise(), hard);
        let now = getrlimit(Resource::Nofile);
        assert_eq!((now.current, now.maximum), (Some(hard.min(MOST)), maximum));
    }
}
