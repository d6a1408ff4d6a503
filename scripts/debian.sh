# shellcheck shell=bash
# A root of Debian from this machine's own mirrors; sourced by scripts/fresh, scripts/first-minute and scripts/dist-image.
#
#   host_suite                          this machine's, or bookworm
#   bootstrap SUITE TARGET [OPTION..]   TARGET: a directory, or a .tar; options are mmdebstrap's
#
# Needs root and the functions `say` and `die`.

# The root is thrown away or packed: dpkg need not force each file of it to the disk, which takes minutes.
UNSAFE_IO=force-unsafe-io

host_suite() { (. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}"); }

# Lines `SITE RELEASE COMPONENT KEYRING` of Debian's own archives; third parties' are left out.
sources() {
    apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT) $(SIGNED_BY)' 'Created-By: Packages' |
        awk -v host="$(host_suite)" -v suite="$1" '
            $2 ~ "^" host "(-updates|-security)?$" && $3 == "main" && !seen[$1 $2]++ {
                sub("^" host, suite, $2); print }'
}

as_list() {
    local site release component keyring
    while read -r site release component keyring; do
        case $keyring in
        /*) echo "deb [signed-by=$keyring] $site $release $component" ;;
        *) echo "deb $site $release $component" ;;
        esac
    done
}

bootstrap() {
    local suite=$1 target=$2 lines site
    shift 2
    lines=$(sources "$suite")
    [ -n "$lines" ] || die "apt-get names no Debian mirror of $(host_suite) on this machine; without package lists it knows none: apt-get update"
    if command -v mmdebstrap >/dev/null; then
        local line options=()
        while read -r line; do [ -z "$line" ] || options+=(--aptopt="$line"); done < <(
            apt-config dump | grep -E '^Acquire::(http|https)::Proxy' || true)
        as_list <<<"$lines" | mmdebstrap --quiet --mode=root --variant=minbase --dpkgopt="$UNSAFE_IO" \
            ${options[@]+"${options[@]}"} "$@" "$suite" "$target" -
    elif command -v debootstrap >/dev/null && [ $# -eq 0 ] && [ "${target%.tar}" = "$target" ]; then
        site=$(awk -v suite="$suite" '$2 == suite { print $1; exit }' <<<"$lines")
        debootstrap --variant=minbase "$suite" "$target" "$site" >/dev/null
        as_list <<<"$lines" >"$target/etc/apt/sources.list"
    else
        die "mmdebstrap is needed: apt-get install mmdebstrap"
    fi
}
