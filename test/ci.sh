#!/bin/sh
# What a change has to pass: the targets of the Makefile that are its arguments, one after another.
#
# The last of them runs a kubelet. To build it takes seven minutes of processor time where Go's cache has nothing of it,
# and lint, with which `make test` ends, some minutes. So both run beside the first targets,
# which mostly wait: only when no other process wants a processor (SCHED_IDLE), and with temporary files inside the tree,
# so that `make test` finds the machine as it was. The directory's name begins with a dot: Go would take what is made
# there for packages of this tree (./...).
set -eu
cd "$(dirname "$0")/.."

# The packages that lint installs, before others are installed beside it: dpkg does one thing at a time.
make --no-print-directory lint-deps
mkdir -p bin/.tmp
for target in lint kubernetes; do
	GOTMPDIR=$PWD/bin/.tmp TMPDIR=$PWD/bin/.tmp setsid chrt --idle 0 make --no-print-directory $target >bin/$target.log 2>&1 &
	eval "$target=\$!"
done
trap 'kill -- ${lint:+-$lint} ${kubernetes:+-$kubernetes} 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM

# finished waits for lint or kubernetes, once, and shows what it printed where it has failed.
finished() {
	eval "running=\$$1"
	[ -n "$running" ] || return 0
	code=0
	wait "$running" || code=$?
	eval "$1="
	[ $code = 0 ] || { cat "bin/$1.log"; echo "make $1 failed" >&2; exit 1; }
}

took=
for target in "$@"; do
	began=$(date +%s)
	case $target in
	test)
		make --no-print-directory test LINT=
		finished lint
		;;
	kubelet*)
		finished kubernetes
		make --no-print-directory "$target"
		;;
	*) make --no-print-directory "$target" ;;
	esac
	took="$took  $target $(($(date +%s) - began)) s
"
done
finished lint
printf 'All passed:\n%s' "$took"
