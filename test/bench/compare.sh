#!/bin/sh
# Measures two revisions in turns, by this tree's benchmark, and prints how they differ and by how much samples spread.
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
turn=1
while [ "$turn" -le "$turns" ]; do
	echo "turn $turn of $turns" >&2
	for side in base this; do
		bin=$top/bin
		[ "$side" = this ] || bin=$tree/bin
		BERTH_BIN=$bin "$work/bench" -rounds 2 -pods 0 -burst 20 -log 0 -pull 0 -span 1s -samples "$work/$side" \
			>"$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
	done
	turn=$((turn + 1))
done
go tool benchstat "base=$work/base" "this=$work/this"
