# shellcheck shell=bash
# The times of a script's parts; sourced by scripts/demo and scripts/build-times.
#
#   part NAME        ends the part before and begins this one
#   times_table      ends the last part; one row a part on stderr: the clock, and the processors for the commands that the script
#                    waited for, with their children; a daemon is no child
part_name='' part_began=0 part_spent=0 part_rows=() part_file=$(mktemp)

# 1m2.345s as milliseconds.
part_ms() {
    local seconds=${1#*m}
    seconds=${seconds%s}
    echo $((${1%m*} * 60000 + 10#${seconds/[.,]/}))
}

part() {
    local user system now=${EPOCHREALTIME/[.,]/} spent
    # Not in a subshell, which has no children yet.
    times >"$part_file"
    { read -r _ && read -r user system; } <"$part_file"
    spent=$(($(part_ms "$user") + $(part_ms "$system")))
    [ -z "$part_name" ] || part_rows+=("$((now / 1000 - part_began)) $((spent - part_spent)) $part_name")
    part_name=$1 part_began=$((now / 1000)) part_spent=$spent
}

times_table() {
    part ''
    rm -f "$part_file"
    printf '%s\n' "${part_rows[@]}" | awk '
        function row(clock, cpu, name) { printf "  %8.1f s %8.1f s  %s\n", clock / 1000, cpu / 1000, name }
        BEGIN { printf "  %10s %10s\n", "clock", "processor" }
        { clock += $1; cpu += $2; name = $0; sub(/^[0-9]+ [0-9]+ /, "", name); row($1, $2, name) }
        END { row(clock, cpu, "in all") }' >&2
}
