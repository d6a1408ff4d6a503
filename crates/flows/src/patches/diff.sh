set -eu
commit=$2 most=$3
d=/tmp/.cofferdam-patch
rm -rf "$d"
mkdir "$d"
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0 LC_ALL=C GIT_LITERAL_PATHSPECS=1
export GIT_DIR="$d/git" GIT_WORK_TREE=/work
git init -q --template= --object-format="$1"
# What some file system takes for git's directory is listed and refused by name, not skipped.
git config core.protectNTFS false
git config core.protectHFS false
git config core.quotePath false
mkdir -p "$d/git/objects/info"
echo /work/.git/objects >"$d/git/objects/info/alternates"
cd /work
git read-tree "$commit"

# Git in a repository of the task's. What it says is as good as the files that it is asked about.
theirs() {
  env -u GIT_DIR -u GIT_WORK_TREE GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' git "$@"
}
# Has git look into a repository: it does where the index has something of it. No tree is written of that entry.
look_into() {
  git update-index --add --cacheinfo "100644,$commit,$1/.cofferdam"
}

tab=$(printf '\t')
: >"$d/submodules"
# Puts the files of submodules that have some into the index, in place of their commits.
expand() {
  found=1
  git ls-files -s >"$d/index"
  while IFS= read -r line; do
    case $line in "160000 "*) ;; *) continue ;; esac
    path=${line#*"$tab"} id=${line#160000 } id=${id%% *}
    case $path in
    \"*)
      echo "cofferdam: a submodule's path has quotes or control characters" >&2
      exit 1
      ;;
    esac
    [ ! -L "$path" ] && [ -d "$path" ] && [ -n "$(ls -A -- "$path")" ] || continue
    found=0
    git update-index --force-remove -- "$path"
    printf '%s %s\n' "$id" "$path" >>"$d/submodules"
    [ -e "$path/.git" ] || continue
    objects=$(cd -- "$path" && cd -- "$(theirs rev-parse --git-path objects)" && pwd -P) || continue
    printf '%s\n' "$objects" >>"$d/git/objects/info/alternates"
    git read-tree --prefix="$path/" "$id" 2>/dev/null || :
  done <"$d/index"
  return "$found"
}
# Submodules of submodules, too.
for _ in 1 2 3 4; do expand || break; done
base=$(git write-tree)

while IFS= read -r line; do look_into "${line#* }"; done <"$d/submodules"
# A repository without a commit is none that git could add as one.
if command -v find >/dev/null; then find . -name .git -prune -print; fi >"$d/repositories"
while IFS= read -r path; do
  path=${path%/.git}
  [ "$path" = . ] || theirs -C "$path" rev-parse -q --verify HEAD >/dev/null 2>&1 || look_into "${path#./}"
done <"$d/repositories"
git -c advice.addEmbeddedRepo=false add -A .
tree=$(git write-tree)

{
  while IFS= read -r line; do
    id=${line%% *} path=${line#* }
    git diff-tree --quiet -r "$base" "$tree" -- "$path" || printf ':160000 160000 %s %s M\0%s\0' "$id" "$id" "$path"
  done <"$d/submodules"
  git diff-tree -r -z --raw --no-renames --no-abbrev "$base" "$tree"
} >"$d/all"
ends=$(tr -cd '\0' <"$d/all" | wc -c)
echo $((ends / 2)) >"$d/count"
head -c "$most" "$d/all" >"$d/raw"
