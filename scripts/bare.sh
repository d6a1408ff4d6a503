# shellcheck shell=bash
# A bare Debian root, and commands in it as in a machine of its own; sourced by scripts/fresh and scripts/first-minute, which run at
# the repository's root. Package mirrors, certificates and name resolution are this machine's, read when it runs.
#
#   bare_root SUITE ROOT                        Debian minbase of bookworm or trixie
#   bare_clients ROOT                           this machine's configuration of pip, npm and cargo too
#   bare_run LIMIT ROOT [--tools DIR] [NAME=VALUE].. -- COMMAND..
#                                               at / of the root, by pid 1 of its own mount and pid namespace; DIR is /opt/rust, read-only
#   bare_end                                    for a trap: ends what runs
#
# Needs root, scripts/debian.sh and the functions `say` and `die`.

# What lets clients reach their registries, and whether times are told; nothing else of this environment goes in.
BARE_KEPT='^(https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY|PIP_(INDEX_URL|EXTRA_INDEX_URL|CERT|TRUSTED_HOST|DEFAULT_TIMEOUT)|CARGO_(HTTP|NET|REGISTR|SOURCE)[A-Z_0-9]*|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|NODE_EXTRA_CA_CERTS|TEST_TIMES)='
BARE_PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
bare_running=

bare_copy() {
    local root=$1 file
    shift
    for file in "$@"; do
        [ -f "$file" ] || continue
        mkdir -p "$root${file%/*}"
        cp --dereference "$file" "$root$file"
    done
}

bare_root() {
    local suite=$1 root=$2 bundle=/etc/ssl/certs/ca-certificates.crt
    bootstrap "$suite" "$root"
    bare_copy "$root" /etc/hosts /etc/resolv.conf "$bundle"
    # As a local certificate, too: Debian's package writes the bundle anew when it is installed.
    mkdir -p "$root/usr/local/share/ca-certificates"
    [ ! -f "$bundle" ] || cp "$bundle" "$root/usr/local/share/ca-certificates/this-machine.crt"
}

bare_clients() {
    local root=$1 cargo=${CARGO_HOME:-$HOME/.cargo}
    bare_copy "$root" /etc/pip.conf /root/.config/pip/pip.conf /root/.npmrc
    if [ -f "$cargo/config.toml" ]; then
        mkdir -p "$root/root/.cargo"
        cp "$cargo/config.toml" "$root/root/.cargo/"
    fi
}

# The second stage: pid 1 of the namespace. `pivot_root`, not `chroot`: in a chroot the kernel refuses user namespaces.
bare_inside() {
    local root=$1 tools=$2
    shift 2
    mount --make-rprivate /
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    mkdir -p "$root/.host"
    if [ -n "$tools" ]; then
        mkdir -p "$root/opt/rust"
        mount --bind "$tools" "$root/opt/rust"
        mount -o remount,bind,ro "$root/opt/rust"
    fi
    cd "$root" || return
    pivot_root . .host
    cd /
    umount --lazy /.host
    # Not exec: the first process of a pid namespace takes in orphans, and a shell does.
    "$@"
}

bare_run() {
    local limit=$1 root=$2 tools='' path=$BARE_PATH environment=()
    shift 2
    if [ "$1" = --tools ]; then
        tools=$2
        path=/opt/rust/bin:$path
        shift 2
    fi
    mapfile -t environment < <(env | grep -E "$BARE_KEPT" || true)
    while [ "$1" != -- ]; do
        environment+=("$1")
        shift
    done
    shift
    # The quoted text is for the inner shell.
    # shellcheck disable=SC2016
    env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive PATH="$path" ${environment[@]+"${environment[@]}"} \
        timeout --kill-after=5s "$limit" \
        unshare --mount --pid --fork --kill-child bash -euc '. scripts/bare.sh && bare_inside "$@"' bare "$root" "$tools" "$@" \
        </dev/null &
    # In the background, so that a signal to the script is heard at once.
    bare_running=$!
    local status=0
    wait "$bare_running" || status=$?
    bare_running=
    return "$status"
}

bare_end() {
    [ -n "$bare_running" ] || return 0
    kill "$bare_running" 2>/dev/null || true
    wait "$bare_running" || true
}
