#!/bin/sh
# Measures two revisions in one run of this tree's benchmark, a pod of the one after a pod of the other,
# and prints how they differ and by how much samples spread. What the machine does meanwhile falls on both. Runs of some
# seconds in turns are not fine enough: by them the same two revisions differed by -1 % one time and by +7 % another,
# and benchstat called it significant.
#   compare.sh BASE [TURNS]
set -eu
base=$1
turns=${2:-6}
top=$(git rev-parse --show-toplevel)
work=$(mktemp -d)
tree=$work/tree
cleanup() {
	git -C "$top" worktree remove --force "$tree" 2>/dev/null || true
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP
git -C "$top" worktree add --quiet --detach "$tree" "$base"
make -C "$tree" build >/dev/null
cd "$top"
go build -tags seccomp -o "$work/bench" ./test/bench
"$work/bench" -base "$tree/bin" -rounds $((turns * 10)) -lives 1 -pods 0 -burst 20 -turns $((turns * 3)) \
	-span 500ms -log 0 -pull 0 \
	-samples "$work/samples" >"$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
grep '^Benchmark/berth/' "$work/samples" >"$work/this"
sed -n 's,^Benchmark/base/,Benchmark/berth/,p' "$work/samples" >"$work/base"
go tool benchstat "base=$work/base" "this=$work/this"
