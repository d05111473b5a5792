#!/bin/sh
# Builds Berth's programs as they are installed: packaging/build.sh DIR [VERSION]. Without a version, and with dev,
# it is that of the tree (version.sh). GO and CC are used if set; STRIP= keeps symbols.
set -eu
case $1 in /*) dir=$1 ;; *) dir=$(pwd)/$1 ;; esac
version=${2:-dev}
cd "$(dirname "$0")/.."
[ "$version" != dev ] || version=
version=$(packaging/version.sh "$version")
go=${GO:-go}
strip=${STRIP--s -w}

# All C, that of libraries included. The processor's control-flow protection is only on some.
CFLAGS="-O2 -g -fstack-protector-strong -fstack-clash-protection -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fPIE"
[ "$($go env GOARCH)" != amd64 ] || CFLAGS="$CFLAGS -fcf-protection"
LDFLAGS="-Wl,-z,relro,-z,now,-z,noexecstack"

# The stage and the init of pods, which the keeper has inside, with musl: glibc asks the processor for all its caches
# at the start of each program, which in a virtual machine takes half a millisecond. The file stays
# as it is where nothing has changed, so that Go's cache counts.
program=internal/keeper/program
made=$(mktemp "$program/.program.XXXXXX")
trap 'rm -f "$made"' EXIT
musl=${MUSL_GCC:-musl-gcc}
gnu=$($musl -dumpmachine)
lib=${MUSL_LIB:-/usr/lib/${gnu%-gnu}-musl}
# musl-gcc knows no static-pie: these are its parts. The headers of the kernel are where glibc's are.
# shellcheck disable=SC2086
$musl $CFLAGS -DBERTH_PROGRAM -include $program/c/bounds.h -idirafter /usr/include -idirafter "/usr/include/$gnu" \
	-frecord-gcc-switches -Wall \
	$LDFLAGS -static -nostartfiles -Wl,-pie,--no-dynamic-linker -s -o "$made" \
	"$lib/rcrt1.o" "$lib/crti.o" internal/keeper/stage/*.c internal/keeper/podinit/*.c $program/c/*.c "$lib/crtn.o"
cmp -s "$made" $program/program.bin || { chmod 0644 "$made" && mv "$made" $program/program.bin; }

# None has any C. They are static, since berthd starts itself, and berth-unpack, in places that hold nothing else.
# berthd runs no NRI plugins of WebAssembly: they would run inside it, compiled to memory that its unit forbids to
# execute.
CGO_ENABLED=0 $go build -trimpath -buildvcs=false -tags seccomp,nri_no_wasm -ldflags "$strip -X main.version=$version" \
	-o "$dir/" ./cmd/berthd ./cmd/berth
CGO_ENABLED=0 $go build -trimpath -buildvcs=false -tags seccomp -ldflags "$strip" -o "$dir/" ./cmd/berth-unpack

# Without -trimpath, with which Go does not record how the C was compiled: a test reads that.
CGO_CFLAGS=$CFLAGS CGO_LDFLAGS="-O2 -g $LDFLAGS" \
	$go build -buildvcs=false -buildmode=pie -tags seccomp,netgo,osusergo,pie,embedprogram \
	-ldflags "-linkmode=external $strip -X main.version=$version" -o "$dir/berth-keeper" ./cmd/berth-keeper
