//! Programs that read a word a second time, as code or as options. What stands as one word before them is
//! more than a word behind them.
//!
//! No list of such programs can be whole. So the list only has what people put there by mistake; that a value
//! stays one argument is the rule, and what a program makes of its arguments is its author's to know.

/// Commands whose arguments are code, all of them: of shells, of other interpreters, of other hosts.
const READERS: [&str; 33] = [
    "eval", "[[", "let", "trap", "source", ".", "declare", "typeset", "local", "export",
    "readonly", "unset", "read", "alias", "ssh", "su", "runuser", "watch", "parallel", "awk",
    "gawk", "mawk", "nawk", "sed", "make", "gmake", "bc", "dc", "m4", "gdb", "vim", "ed",
    "sqlite3",
];
/// Commands whose first argument is a program.
const WRAPPERS: [&str; 19] = [
    "env", "exec", "command", "builtin", "nohup", "time", "timeout", "nice", "ionice", "setsid",
    "sudo", "doas", "xargs", "stdbuf", "flock", "unshare", "chroot", "busybox", "strace",
];
/// Options whose argument is code, in full; [`is_code_flag`] knows the short ones.
const CODE: [&str; 9] =
    ["--eval", "--exec", "--execute", "--command", "--print", "-exec", "-execdir", "-ok", "-okdir"];
/// Short options in one word that are taken for some which end in one for code: `-euxc`.
const MAX_CLUSTER: usize = 6;
/// Variables that programs take code or programs from, and how such names begin.
const VARIABLES: [&str; 19] = [
    "PATH",
    "IFS",
    "ENV",
    "SHELL",
    "PS4",
    "BASH_ENV",
    "SHELLOPTS",
    "PROMPT_COMMAND",
    "EDITOR",
    "VISUAL",
    "PAGER",
    "BROWSER",
    "MAKEFLAGS",
    "NODE_OPTIONS",
    "NODE_PATH",
    "RUBYOPT",
    "RUBYLIB",
    "GCONV_PATH",
    "CLASSPATH",
];
const VARIABLES_BEGIN: [&str; 7] =
    ["LD_", "PYTHON", "PERL", "GIT_", "JAVA_TOOL_", "JDK_JAVA_", "BASH_FUNC_"];

/// Whether what follows this word is code: `-c`, `-ec`, `-ne`, `--eval`.
pub(super) fn is_code_flag(word: &str) -> bool {
    let word = word.split('=').next().unwrap_or(word);
    let is_short = |flags: &str| {
        flags.len() <= MAX_CLUSTER
            && flags.bytes().all(|b| b.is_ascii_alphabetic())
            && flags.ends_with(['c', 'e', 'E'])
    };
    CODE.contains(&word) || word.strip_prefix('-').is_some_and(is_short)
}

/// Why a word that stands behind these is more than a word, if it is.
pub(super) fn reads_again<'w>(
    words: impl DoubleEndedIterator<Item = &'w str> + Clone,
) -> Option<String> {
    let Some(last) = words.clone().next_back() else {
        return Some("as the program itself".into());
    };
    if is_code_flag(last) {
        return Some(format!("behind `{last}`, where it is code"));
    }
    if let Some(reader) = words.clone().map(program).find(|word| READERS.contains(word)) {
        return Some(format!("among the arguments of `{reader}`, which are read a second time"));
    }
    let is_on_the_way = |word: &str| {
        WRAPPERS.contains(&program(word))
            || word.starts_with('-')
            || word.contains('=')
            || word.starts_with(|c: char| c.is_ascii_digit())
    };
    let mut words = words;
    let first = words.clone().next().map(program).unwrap_or_default();
    let is_program = WRAPPERS.contains(&first) && words.all(is_on_the_way);
    is_program.then(|| format!("as the program that `{first}` starts"))
}

/// A program's name without its directory.
fn program(word: &str) -> &str {
    word.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(word)
}

/// Whether programs take code, or programs, from a variable.
pub(super) fn is_code_variable(name: &str) -> bool {
    VARIABLES.contains(&name) || VARIABLES_BEGIN.iter().any(|begin| name.starts_with(begin))
}
