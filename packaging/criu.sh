#!/bin/sh
# Prints the path of a criu that works on this kernel, for tests. That is the one in PATH, or, where this release's is too old
# for the kernel, one of a newer release of Debian, unpacked with its libraries into a directory (the argument): nothing of
# it is installed. Without any it prints nothing.
set -eu
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/berth/criu}
suite=trixie

works() { "$1" check >/dev/null 2>&1; }

if installed=$(command -v criu) && works "$installed"; then
	echo "$installed"
	exit 0
fi
criu=$dir/criu
if [ -x "$criu" ] && works "$criu"; then
	echo "$criu"
	exit 0
fi
command -v apt-get >/dev/null || exit 0

mkdir -p "$dir/state/lists/partial" "$dir/cache/archives/partial" "$dir/root"
: >"$dir/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main" >"$dir/sources.list"
apt() {
	apt-get -q -y -o Dir::State="$dir/state" -o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" \
		-o Dir::Etc::sourcelist="$dir/sources.list" -o Dir::Etc::sourceparts=- -o Dir::Etc::preferences=- \
		-o Dir::Etc::preferencesparts=- -o APT::Sandbox::User=root -o APT::Install-Recommends=false "$@" >"$dir/log" 2>&1 ||
		{ cat "$dir/log" >&2; exit 1; }
}
apt update
apt --download-only install criu
for deb in "$dir"/cache/archives/*.deb; do
	dpkg-deb -x "$deb" "$dir/root"
done
cat >"$criu" <<EOF
#!/bin/sh
lib=$dir/root/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo x86_64-linux-gnu)
exec \$(echo \$lib/ld-linux-*.so.*) --library-path \$lib $dir/root/usr/sbin/criu "\$@"
EOF
chmod 0755 "$criu"
if works "$criu"; then
	echo "$criu"
else
	echo "criu of $suite does not work on this kernel either" >&2
fi
