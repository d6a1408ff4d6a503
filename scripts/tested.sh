# The tree on which all tests passed: `make test` leaves its id in target/tested, and `make dist` compares. Sourced by both, at the root.

# The id of the tree that lies here, Cargo.lock included; nothing where a file differs from what is committed, or is not.
tree_here() {
    local changed
    changed=$(git status --porcelain 2>/dev/null) || return 0
    [ -z "$changed" ] || return 0
    git rev-parse --verify --quiet 'HEAD^{tree}' || true
}

# All tests passed; $1 is the tree at their beginning. Of one that is not committed, or changed meanwhile, nothing is known.
tested() {
    rm -f target/tested
    [ -n "$1" ] && [ "$(tree_here)" = "$1" ] || return 0
    mkdir -p target
    echo "$1" >target/tested
}

# What names of packages end in: nothing where all tests passed on exactly this tree.
unverified() {
    local tree
    tree=$(tree_here)
    [ -n "$tree" ] && [ "$(cat target/tested 2>/dev/null)" = "$tree" ] || echo -unverified
}
