#!/bin/sh
# Prints the directory of the C libraries of another architecture than this machine's: packaging/cross.sh amd64|arm64.
# It installs the cross compiler of Debian. The libraries are unpacked into a cache, in the versions that this machine
# has of its own: nothing of them is installed, and dpkg gets no further architecture. They come from where this
# machine has its packages from.
set -eu
arch=$1
case $arch in
amd64) gnu=x86_64-linux-gnu ;;
arm64) gnu=aarch64-linux-gnu ;;
*)
	echo "Berth is built for amd64 and arm64, not for $arch" >&2
	exit 1
	;;
esac
here=$(dirname "$0")
"$here/packages.sh" "gcc-$(echo $gnu | tr _ -)" "libc6-dev-$arch-cross" >&2

wanted=
for package in libseccomp-dev musl-dev; do
	wanted="$wanted $package=$(dpkg-query -W -f '${Version}' $package)"
done
dir=${XDG_CACHE_HOME:-$HOME/.cache}/berth/cross-$arch/$(echo "$wanted" | sed "s/^ //; s/[^A-Za-z0-9.+-]/_/g")
if [ -d "$dir" ]; then
	echo "$dir"
	exit 0
fi
mkdir -p "$(dirname "$dir")"
at=$(mktemp -d "$(dirname "$dir")/.cross.XXXXXX")
trap 'rm -rf "$at"' EXIT
mkdir -p "$at/state/lists/partial" "$at/cache/archives/partial" "$at/root"
: >"$at/status"

apt() {
	apt-get -q -y -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o Dir::State="$at/state" \
		-o Dir::State::status="$at/status" -o Dir::Cache="$at/cache" -o APT::Sandbox::User= "$@" >>"$at/log" 2>&1
}

# shellcheck disable=SC2086
if ! apt update || ! (cd "$at" && apt download $wanted); then
	cat "$at/log" >&2
	echo "the libraries of $arch were not found: is this machine's Debian up to date?" >&2
	exit 1
fi
for deb in "$at"/*.deb; do
	dpkg-deb -x "$deb" "$at/root"
done
# The paths that Debian's wrapper of the compiler has are those of an installed package.
musl=${gnu%-gnu}-musl
sed -i "s#/usr/\(lib\|include\)/$musl#$dir/usr/\1/$musl#g" "$at/root/usr/lib/$musl/musl-gcc.specs"
cat >"$at/root/usr/bin/$musl-gcc" <<END
#!/bin/sh
exec $gnu-gcc "\$@" -specs "$dir/usr/lib/$musl/musl-gcc.specs"
END
chmod 0755 "$at/root" "$at/root/usr/bin/$musl-gcc"
# Where somebody else was faster the directory is there already.
mv -T "$at/root" "$dir" 2>/dev/null || [ -d "$dir" ]
echo "$dir"
