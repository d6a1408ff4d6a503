#!/bin/sh
# Installs Cofferdam from this unpacked archive on Debian 12, Debian 13 or a relative. Needs root; needs no compiler.
#
#   ./install.sh              checks the sum of every file, installs what Debian lacks with apt, then the files below /usr/local
#   ./install.sh --dry-run    checks the sums, says what it would do, and does nothing; needs no root
#   ./install.sh --prefix DIR       below DIR instead
#   ./install.sh --uninstall        removes what it installed below the prefix; keeps Debian's packages and /var/lib/cofferdam
#   ./install.sh --uninstall --purge    removes /var/lib/cofferdam (runs, artifacts, keys, the private database) too
#
# Running it again repairs or upgrades. Exit codes: 0 done, 1 refused or failed (nothing is half installed), 2 wrong arguments.
set -eu
umask 022

# scripts/dist writes these. SUMS is the SHA-256 of the file SHA256SUMS.
VERSION='@VERSION@'
ARCH='@ARCH@'
SUMS='@SUMS@'

prefix=/usr/local
dry_run='' uninstall='' purge=''
# Directories that this run made for the prefix, innermost first; the draft of what is installed; the user, once made; the times.
made='' draft='' made_user='' times=''
STATES='/var/lib/cofferdam /var/lib/cofferdam-states'
CLUSTERS=/etc/postgresql-common/createcluster.conf

say() { echo "install.sh: $*" >&2; }
die() { say "$*"; exit 1; }
usage() { sed -n '2,/^set -eu$/s/^# \{0,1\}//p' "$0"; }
have() { command -v "$1" >/dev/null 2>&1; }
now() { date +%s; }

arguments() {
    while [ $# -gt 0 ]; do
        case $1 in
        --prefix)
            [ $# -gt 1 ] || wrong "--prefix needs a directory"
            prefix=$2
            shift
            ;;
        --prefix=*) prefix=${1#--prefix=} ;;
        --dry-run) dry_run=yes ;;
        --uninstall) uninstall=yes ;;
        --purge) purge=yes ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) wrong "unknown argument $1" ;;
        esac
        shift
    done
    prefix=${prefix%/}
    case $prefix in
    /usr) wrong "/usr belongs to Debian's packages: install the .deb, or choose another --prefix" ;;
    *[!A-Za-z0-9/._+-]* | */../* | */..) wrong "--prefix $prefix: only letters, digits, / . _ + - (systemd reads the path)" ;;
    /?*) ;;
    *) wrong "--prefix must be an absolute path other than /" ;;
    esac
    [ -z "$purge" ] || [ -n "$uninstall" ] || wrong "--purge needs --uninstall"
    # Relative to the prefix; its lines are `file PATH`, `dir PATH`, `user NAME` and `package NAME`.
    manifest=share/cofferdam/manifest
}

wrong() {
    say "$*; see ./install.sh --help"
    exit 2
}

needs_root() {
    [ "$(id -u)" -eq 0 ] || die "this needs root: run it as root, or: sudo ./install.sh"
}

# --- the archive ---------------------------------------------------------------------------------
check_archive() {
    here=$(cd "$(dirname "$0")" && pwd)
    # The pattern is not written out, or scripts/dist would fill it in.
    case $SUMS in
    *SUMS*) die "this is the template of the source tree: make dist, then run the install.sh of the archive" ;;
    esac
    machine=$(uname -m)
    [ "$machine" = "$ARCH" ] || die "this archive is for $ARCH, this machine is $machine: take the archive for $machine, or build from source"
    have sha256sum || die "sha256sum is missing (Debian's package coreutils)"
    [ -f "$here/SHA256SUMS" ] || die "SHA256SUMS is missing beside install.sh: unpack the whole archive again"
    sum=$(sha256sum <"$here/SHA256SUMS")
    [ "${sum%% *}" = "$SUMS" ] || die "SHA256SUMS is not what was packed: download and unpack the archive again"
    if ! wrong=$(cd "$here" && LC_ALL=C sha256sum --check --quiet SHA256SUMS 2>/dev/null); then
        echo "$wrong" | sed 's/^/install.sh: /; s/: FAILED open or read$/ is missing/; s/: FAILED$/ is truncated or was changed/' >&2
        die "nothing was installed: download and unpack the archive again"
    fi
}

# --- what Debian lacks ------------------------------------------------------------------------------
has_postgres() {
    for bin in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/local/pgsql/bin; do
        [ ! -x "$bin/initdb" ] || [ ! -x "$bin/postgres" ] || return 0
    done
    have initdb && have postgres
}

# What `cofferdam doctor` asks for. Also looks in root's directories, which PATH may lack.
missing_packages() {
    PATH=$PATH:/usr/sbin:/sbin
    has_postgres || echo postgresql
    have crun || have runc || echo crun
    have mkfs.ext4 || echo e2fsprogs
    [ -s /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
}

# Its output, and that of the packages' scripts, is shown only on failure.
apt() { apt_said=$(DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" </dev/null 2>&1); }

failed() {
    echo "$apt_said" | tail -n 20 >&2
    die "$*"
}

# With the package lists at hand; on failure, with newer ones.
install_packages() {
    have apt-get || die "apt-get is missing. Install these with your package manager, then run this again:" "$@"
    # Debian's package would make and start a server of its own; Cofferdam starts a private one.
    case " $* " in
    *" postgresql "*) [ -e "$CLUSTERS" ] || {
        mkdir -p "${CLUSTERS%/*}"
        echo 'create_main_cluster = false' >"$CLUSTERS"
    } ;;
    esac
    say "installing $* with apt-get (less than a minute where the mirror is near)"
    if ! apt install --yes --no-install-recommends "$@"; then
        apt update || failed "apt-get update failed: is the network there? These packages are needed: $*"
        apt install --yes --no-install-recommends "$@" || failed "apt-get could not install: $*"
    fi
    [ -z "$(missing_packages)" ] || die "still missing after the installation: $(missing_packages | tr '\n' ' ')"
}

# --- the files -------------------------------------------------------------------------------------
# KiB that are free where the directory is, or will be.
free_kib() {
    at=$1
    while [ ! -d "$at" ]; do at=$(dirname "$at"); done
    df -Pk "$at" | awk 'NR == 2 { print $4 }'
}

needed_kib() { (cd "$here" && du -sk bin lib share) | awk '{ sum += $1 } END { print sum + 1024 }'; }

full() { die "$prefix cannot be written, or its disk is full ($(needed_kib) KiB are needed)${1:+: $1}"; }

# Makes a directory and remembers which of its parents were missing.
make_prefix() {
    [ -d "$prefix" ] && return
    at=$prefix
    while [ ! -d "$at" ]; do
        made="$made $at"
        at=$(dirname "$at")
    done
    mkdir -p "$prefix"
}

cleanup() {
    status=$?
    trap - EXIT
    if [ -n "$draft" ]; then
        rm -rf "$draft"
        # Innermost first; a directory with files in it stays.
        for dir in $made; do rmdir "$dir" 2>/dev/null || true; done
        [ -z "$made_user" ] || userdel cofferdam || true
    fi
    exit "$status"
}

# Copies the whole tree next to its destination first: a full disk or a binary that cannot run changes nothing. Then renames each
# file, which also replaces a running program.
install_files() {
    draft=$prefix/.cofferdam-install.$$
    make_prefix
    mkdir "$draft"
    # The first error of many.
    said=$(cd "$here" && cp -R bin lib share "$draft/" 2>&1) || full "$(echo "$said" | head -n 1)"
    chown -R 0:0 "$draft"
    chmod -R u=rwX,go=rX "$draft"
    for unit in cofferdam.service cofferdam.slice; do
        sed "s|/usr/bin/cofferdam|$prefix/bin/cofferdam|; s|/usr/share/doc|$prefix/share/doc|" "$here/lib/systemd/system/$unit" \
            >"$draft/lib/systemd/system/$unit" || full
    done
    # For --uninstall once the unpacked archive is gone.
    sed "s|^prefix=/usr/local\$|prefix=$prefix|" "$here/install.sh" >"$draft/share/cofferdam/install.sh" || full
    chmod 755 "$draft/share/cofferdam/install.sh"
    said=$("$draft/bin/cofferdam" --version 2>&1) || die "the binary does not run here (is this Debian 12 or newer?): $said"
    make_user
    list >"$draft/$manifest" || full
    sort -u -o "$draft/$manifest" "$draft/$manifest"
    # What an earlier version installed and this one does not have.
    sed -n 's/^file //p' "$draft/$manifest" >"$draft/now"
    gone=''
    [ ! -f "$prefix/$manifest" ] || gone=$(sed -n 's/^file //p' "$prefix/$manifest" | grep -vxF -f "$draft/now" || true)
    rm "$draft/now"
    sed -n 's/^dir //p' "$draft/$manifest" | while read -r dir; do mkdir -p "$prefix/$dir"; done
    # The manifest goes first: --uninstall knows every file even if this is interrupted.
    mv -f "$draft/$manifest" "$prefix/$manifest"
    (cd "$draft" && find . -type d) | while read -r dir; do
        find "$draft/$dir" -maxdepth 1 -type f -exec mv -f -t "$prefix/$dir" {} +
    done
    for file in $gone; do rm -f "$prefix/$file"; done
    rm -rf "$draft"
    draft=''
}

# A user that runs other programs too would give them the database's files.
make_user() {
    [ -n "$new_user" ] || return 0
    if useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin cofferdam; then
        made_user=yes
    else
        say "no user cofferdam could be made: the private database will run as postgres"
    fi
}

# The manifest: all files, and the directories, user and packages that this installation adds.
list() {
    (cd "$draft" && find . -type f | sed 's|^\./|file |') && echo "file $manifest"
    (cd "$draft" && find . -mindepth 1 -type d | sed 's|^\./||') | while read -r dir; do
        [ -d "$prefix/$dir" ] || echo "dir $dir"
    done
    for dir in $made; do echo "own $dir"; done
    [ -z "$made_user" ] || echo "user cofferdam"
    for package in $new_packages; do echo "package $package"; done
    # What an earlier run added.
    [ ! -f "$prefix/$manifest" ] || grep -vE '^file ' "$prefix/$manifest" || true
}

reload_units() { [ ! -d /run/systemd/system ] || systemctl daemon-reload || true; }

# --- out again --------------------------------------------------------------------------------------
# Processes of this installation; before a purge, of any.
running() {
    for exe in /proc/[0-9]*/exe; do
        program=$(readlink "$exe" 2>/dev/null) || continue
        case ${purge:+any}${program% (deleted)} in
        "$prefix/bin/cofferdam" | any*/cofferdam) echo "$exe" | cut -d/ -f3 ;;
        esac
    done
}

remove() {
    [ -f "$prefix/$manifest" ] || die "nothing of this installer is below $prefix: no $prefix/$manifest"
    if [ -n "$dry_run" ]; then
        say "would remove $(grep -c '^file ' "$prefix/$manifest") files below $prefix${purge:+ and $STATES}; nothing was done"
        return
    fi
    needs_root
    if [ -d /run/systemd/system ] && [ "$prefix" = /usr/local ]; then systemctl disable --quiet --now cofferdam 2>/dev/null || true; fi
    pids=$(running | tr '\n' ' ')
    [ -z "$pids" ] || die "Cofferdam is running (process $pids): stop it first"
    mine=$(cat "$prefix/$manifest")
    echo "$mine" | sed -n 's/^file //p' | while read -r file; do rm -f "$prefix/$file"; done
    # Children before parents; a directory with other files stays.
    echo "$mine" | sed -n 's/^dir //p' | sort -r | while read -r dir; do rmdir "$prefix/$dir" 2>/dev/null || true; done
    echo "$mine" | sed -n 's/^own //p' | sort -r | while read -r dir; do rmdir "$dir" 2>/dev/null || true; done
    reload_units
    if [ -n "$purge" ]; then
        for state in $STATES; do rm -rf --one-file-system "$state"; done
    fi
    say "removed Cofferdam from $prefix"
    if [ -d /var/lib/cofferdam ]; then
        say "/var/lib/cofferdam is kept, with the user that its database belongs to: remove both by hand, or next time with --uninstall --purge"
    elif echo "$mine" | grep -qx 'user cofferdam'; then
        userdel cofferdam 2>/dev/null || say "the user cofferdam could not be removed: userdel cofferdam"
    fi
    packages=$(echo "$mine" | sed -n 's/^package //p' | tr '\n' ' ')
    [ -z "$packages" ] || say "these packages stay; where nothing else needs them: apt-get purge --autoremove $packages"
}

# --- all of it --------------------------------------------------------------------------------------
timed() {
    what=$1 since=$(now)
    shift
    "$@"
    times="$times${times:+, }$what $(($(now) - since)) s"
}

main() {
    arguments "$@"
    if [ -n "$uninstall" ]; then
        remove
        return
    fi
    timed "sums" check_archive
    new_packages=$(missing_packages | tr '\n' ' ')
    new_user=''
    id -u cofferdam >/dev/null 2>&1 || new_user=yes
    say "Cofferdam $VERSION for $ARCH: $(wc -l <"$here/SHA256SUMS") files have the sums of the archive"
    say "to install: ${new_packages:+packages $new_packages(apt-get); }${new_user:+a system user cofferdam for the private database; }files below $prefix"
    need=$(needed_kib)
    free=$(free_kib "$prefix")
    [ "$free" -ge "$need" ] || die "$prefix has $free KiB left and $need KiB are needed: make room, or choose another --prefix"
    if [ -n "$dry_run" ]; then
        say "nothing was done (--dry-run)"
        return
    fi
    needs_root
    if dpkg-query -W -f '${Status}' cofferdam 2>/dev/null | grep -q 'ok installed'; then
        die "Debian's package cofferdam is installed: upgrade that with the .deb, or first: apt-get remove cofferdam"
    fi
    trap cleanup EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    # One word is one package.
    # shellcheck disable=SC2086
    [ -z "$new_packages" ] || timed "packages" install_packages $new_packages
    timed "files" install_files
    reload_units
    say "installed $prefix/bin/cofferdam ($times)"
    case ":$PATH:" in
    *":$prefix/bin:"*) ;;
    *) say "$prefix/bin is not in PATH: export PATH=$prefix/bin:\$PATH" ;;
    esac
    say "next: cofferdam exec -- echo hello; then cofferdam doctor, and $prefix/share/doc/cofferdam/README.md"
    say "to remove it: $prefix/share/cofferdam/install.sh --uninstall"
}

# Last, so that a truncated copy of this file does nothing.
main "$@"
