#!/bin/sh
# Makes the packages of one or more architectures, with their checksums, in dist/: packaging/dist.sh ARCH... What is
# there already gets checksums, too. `make build` comes first: its programs write the default configuration, the
# completions and the manual pages for each architecture. VERSION is that of the programs and packages if it is set.
set -eu
umask 022
cd "$(dirname "$0")/.."
go=${GO:-go}
version=$(packaging/version.sh "${VERSION:-}")
# The time of all files in packages: that of the commit, so that the same commit makes the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
own=$($go env GOHOSTARCH)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

$go -C tools/packages build -o "$work/packages" .
for arch; do
	bin=bin
	if [ "$arch" != "$own" ]; then
		bin=bin/$arch
		GOARCH=$arch packaging/build.sh "$bin" "$version"
	fi
	# What the keeper has inside that is not recorded in it, for the bill of materials.
	cc=${CC:-gcc}
	[ "$arch" = "$own" ] || case $arch in arm64) cc=aarch64-linux-gnu-gcc ;; amd64) cc=x86_64-linux-gnu-gcc ;; esac
	libraries=
	for package in libseccomp-dev musl-dev $(dpkg -S "$(realpath "$($cc -print-file-name=libc.a)")" \
		"$(realpath "$($cc -print-file-name=libgcc.a)")" | sed 's/:.*//'); do
		libraries="$libraries $(dpkg-query -W -f '${Package}=${Version}' "$package")"
	done

	root=$work/$arch
	make --no-print-directory install BIN="$bin" DESTDIR="$root" PREFIX=/usr sysconfdir=/etc \
		unitdir=/usr/lib/systemd/system
	man=$root/usr/share/man
	mkdir -p "$man/man1" "$man/man8"
	$go run ./tools/manpages "$man" bin/berthd
	find "$man" -type f -exec gzip -9n {} +
	"$work/packages" -root "$root" -out dist -scripts packaging/scripts -version "$version" -arch "$arch" \
		-time "$SOURCE_DATE_EPOCH" -c-libraries "$libraries"
done
