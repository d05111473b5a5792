#!/bin/sh
# Runs every fuzzer of Go's for FUZZ_GO_SECONDS each; without a number all of them share 75 seconds,
# to which building comes. The arguments are flags of go test. What a fuzzer finds is kept below its package's
# testdata/fuzz, as a seed for all later runs.
#
# Where FUZZ_GO_BLIND is set, the programs are those of the packages' tests, and do not count which code an input
# reaches. So they find less, but to build all that is tested a second time, with the counters, takes six minutes.
set -u
cd "$(dirname "$0")/.."
go=${GO:-go}
# Only the tests of packages that have fuzzers are built. make lint runs go vet.
packages=$(grep -rl --include='*_test.go' --exclude-dir=bin '^func Fuzz' . | xargs -n 1 dirname | sort -u)
# shellcheck disable=SC2086
list=$($go test "$@" -vet=off -list '^Fuzz' $packages) || { echo "$list"; exit 1; }
# Names come before the line of their package.
fuzzers=$(echo "$list" | awk '/^Fuzz/ { names[n++] = $1 } /^ok/ { for (i = 0; i < n; i++) print names[i], $2; n = 0 }')
count=$(echo "$fuzzers" | grep -c .)
[ "$count" -gt 0 ] || { echo "no fuzzers"; exit 1; }
seconds=${FUZZ_GO_SECONDS:-}
[ -n "$seconds" ] || seconds=$((75 / count + 1))
echo "$count fuzzers, $seconds s each"
failed=
built=
dir=$(mktemp -d)
out=$dir/out
trap 'rm -rf "$dir"' EXIT

# fuzz runs a fuzzer of a package; the further arguments are flags of go test. Code with maps does not take the same way
# twice, and the engine would minimize such inputs for a minute each.
fuzz() {
	package=$1
	limits="-fuzztime ${seconds}s -fuzzminimizetime 10x"
	pattern="^$2\$"
	shift 2
	if [ -z "${FUZZ_GO_BLIND:-}" ]; then
		# shellcheck disable=SC2086
		$go test "$@" -vet=off -run '^$' -fuzz "$pattern" $limits "$package"
		return
	fi
	[ -x "$dir/fuzz.test" ] && [ "$package" = "$built" ] ||
		$go test "$@" -vet=off -c -o "$dir/fuzz.test" "$package" || return
	built=$package
	# A test runs in its package's directory.
	# shellcheck disable=SC2086
	(cd "$($go list -f '{{.Dir}}' "$package")" && "$dir/fuzz.test" -test.run '^$' -test.fuzz "$pattern" \
		$(echo "$limits" | sed 's/-fuzz/-test.fuzz/g') -test.fuzzcachedir "$dir/cache")
}

while read -r name package; do
	echo "$package $name"
	fuzz "$package" "$name" "$@" </dev/null >"$out" 2>&1
	code=$?
	cat "$out"
	[ $code != 0 ] || continue
	# The engine may say so of the end of the time itself. What it finds it always writes down.
	if grep -qx '    context deadline exceeded' "$out" && ! grep -q -e 'Failing input written' -e panic "$out"; then
		echo "$name: the time was over, and nothing was found"
		continue
	fi
	failed="$failed $name"
done <<END
$fuzzers
END
[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
