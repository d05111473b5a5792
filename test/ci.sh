#!/bin/sh
# What a change has to pass: the targets of the Makefile that are its arguments, one after another.
#
# The last of them run programs of Kubernetes. To build these takes a quarter of an hour of processor time where Go's
# cache has nothing of them, and the linters some minutes. So they are built beside the first targets, which mostly wait:
# only when no other process wants a processor (SCHED_IDLE), and with temporary files inside the tree, so that `make test`
# finds the machine as it was. The directory's name begins with a dot: Go would take what it makes there for packages of
# this tree (./...).
set -eu
cd "$(dirname "$0")/.."

mkdir -p bin/.tmp
GOTMPDIR=$PWD/bin/.tmp setsid chrt --idle 0 make --no-print-directory linters kubernetes >bin/kubernetes.log 2>&1 &
kubernetes=$!
trap 'kill -- -$kubernetes 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM

took=
for target in "$@"; do
	case $target in
	kubelet* | node-conformance*)
		if [ -n "$kubernetes" ]; then
			wait "$kubernetes" || { cat bin/kubernetes.log; exit 1; }
			kubernetes=
			trap - EXIT
		fi
		;;
	esac
	began=$(date +%s)
	make --no-print-directory "$target"
	took="$took  $target $(($(date +%s) - began)) s
"
done
printf 'All passed:\n%s' "$took"
