#!/bin/sh
# Builds Berth's programs as they are installed: packaging/build.sh DIR [VERSION]. Without a version, and with dev,
# it is that of the tree (version.sh). GOARCH=arm64 or amd64 builds for another architecture than this machine's, with
# Debian's cross compiler (cross.sh). GO and CC are used if set; STRIP= keeps symbols.
# MORE_CFLAGS is added to the flags of all C.
set -eu
case $1 in /*) dir=$1 ;; *) dir=$(pwd)/$1 ;; esac
version=${2:-dev}
cd "$(dirname "$0")/.."
[ "$version" != dev ] || version=
version=$(packaging/version.sh "$version")
go=${GO:-go}
strip=${STRIP--s -w}

# All C, that of libraries included. Each architecture has a control-flow protection of its own.
# Without -g: it would have paths in it that depend on the directory of the tree, and with them the IDs of the build.
CFLAGS="-O2 -fstack-protector-strong -fstack-clash-protection -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fPIE"
[ -n "$strip" ] || CFLAGS="$CFLAGS -g"
CFLAGS="$CFLAGS ${MORE_CFLAGS:-}"
LDFLAGS="-Wl,-z,relro,-z,now,-z,noexecstack"
arch=$($go env GOARCH)
case $arch in
amd64) CFLAGS="$CFLAGS -fcf-protection" gnu=x86_64-linux-gnu ;;
arm64) CFLAGS="$CFLAGS -mbranch-protection=standard" gnu=aarch64-linux-gnu ;;
*)
	echo "Berth is built for amd64 and arm64, not for $arch" >&2
	exit 1
	;;
esac
musl=${MUSL_GCC:-musl-gcc}
lib=${MUSL_LIB:-/usr/lib/${gnu%-gnu}-musl}
# The headers of the kernel are where glibc's are.
headers="-idirafter /usr/include -idirafter /usr/include/$gnu"
if [ "$arch" != "$($go env GOHOSTARCH)" ]; then
	libraries=$(packaging/cross.sh "$arch")
	CC=$gnu-gcc
	PKG_CONFIG_LIBDIR=$libraries/usr/lib/$gnu/pkgconfig
	PKG_CONFIG_SYSROOT_DIR=$libraries
	export CC PKG_CONFIG_LIBDIR PKG_CONFIG_SYSROOT_DIR
	musl=$libraries/usr/bin/${gnu%-gnu}-musl-gcc
	lib=$libraries/usr/lib/${gnu%-gnu}-musl
	headers="-idirafter /usr/$gnu/include"
fi

# The stage, the init of pods and the proxy, which the keeper has inside, with musl: glibc asks the processor for all its caches
# at the start of each program, which in a virtual machine takes half a millisecond. The file stays
# as it is where nothing has changed, so that Go's cache counts.
program=internal/keeper/program
made=$(mktemp "$program/.program.XXXXXX")
trap 'rm -f "$made"' EXIT
# musl-gcc knows no static-pie: these are its parts.
# shellcheck disable=SC2086
$musl $CFLAGS -DBERTH_PROGRAM -include $program/c/bounds.h $headers -frecord-gcc-switches -Wall \
	$LDFLAGS -static -nostartfiles -Wl,-pie,--no-dynamic-linker -s -o "$made" \
	"$lib/rcrt1.o" "$lib/crti.o" internal/keeper/stage/*.c internal/keeper/podinit/*.c \
	internal/keeper/proxy/*.c $program/c/*.c "$lib/crtn.o"
cmp -s "$made" $program/program_$arch.bin || { chmod 0644 "$made" && mv "$made" $program/program_$arch.bin; }

# None has any C. They are static, since berthd starts itself, and berth-unpack, in places that hold nothing else.
# berthd runs no NRI plugins of WebAssembly: they would run inside it, compiled to memory that its unit forbids to
# execute.
CGO_ENABLED=0 $go build -trimpath -buildvcs=false -tags seccomp,nri_no_wasm -ldflags "$strip -X main.version=$version" \
	-o "$dir/" ./cmd/berthd ./cmd/berth
CGO_ENABLED=0 $go build -trimpath -buildvcs=false -tags seccomp -ldflags "$strip" -o "$dir/" ./cmd/berth-unpack

CGO_ENABLED=1 CGO_CFLAGS=$CFLAGS CGO_LDFLAGS="-O2 $LDFLAGS" \
	$go build -trimpath -buildvcs=false -buildmode=pie -tags seccomp,netgo,osusergo,pie,embedprogram \
	-ldflags "-linkmode=external $strip -X main.version=$version" -o "$dir/berth-keeper" ./cmd/berth-keeper
