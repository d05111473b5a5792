#!/bin/sh
# Prints the path of a criu that works on this kernel, for tests. That is the one in PATH, or,
# where this release's is too old for the kernel, one of a newer release of Debian, unpacked with its libraries
# into a directory (the argument): nothing of it is installed. It comes from where this machine has its packages from.
# Without any the script prints nothing.
set -eu
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/berth/criu}

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
release=$(. /etc/os-release && echo "$ID $VERSION_CODENAME" 2>/dev/null) || exit 0
[ "${release% *}" = debian ] || exit 0

# The repository of this machine's own release, and not those of its updates or of other projects.
archive=$(apt-get indextargets --format '$(CREATED_BY) $(RELEASE) $(COMPONENT) $(REPO_URI)' |
	awk -v release="${release#* }" '$1 == "Packages" && $3 == "main" &&
		($2 == release || $2 ~ /^(old)*stable$/) { print $4; exit }')
if [ -z "$archive" ]; then
	echo "this machine's apt has no repository of its own release: install a criu that works on this kernel" >&2
	exit 0
fi

apt() {
	apt-get -q -y -o Dir::State="$at/state" -o Dir::State::status="$at/status" -o Dir::Cache="$at/cache" \
		-o Dir::Etc::sourcelist="$at/sources.list" -o Dir::Etc::sourceparts=- -o Dir::Etc::preferences=- \
		-o Dir::Etc::preferencesparts=- -o APT::Sandbox::User=root -o APT::Install-Recommends=false "$@" >>"$at/log" 2>&1
}

# The repository's newer releases, by the names that they always have.
for suite in stable testing; do
	at=$dir/$suite
	rm -rf "$at"
	mkdir -p "$at/state/lists/partial" "$at/cache/archives/partial" "$at/root"
	: >"$at/status"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $suite main" >"$at/sources.list"
	if ! apt update || ! apt --download-only install criu; then
		echo "no criu of $suite from $archive:" >&2
		cat "$at/log" >&2
		continue
	fi
	for deb in "$at"/cache/archives/*.deb; do
		dpkg-deb -x "$deb" "$at/root"
	done
	cat >"$criu" <<END
#!/bin/sh
lib=$at/root/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo x86_64-linux-gnu)
exec \$(echo \$lib/ld-linux-*.so.*) --library-path \$lib $at/root/usr/sbin/criu "\$@"
END
	chmod 0755 "$criu"
	if works "$criu"; then
		echo "$criu"
		exit 0
	fi
	echo "criu of $suite does not work on this kernel either" >&2
done
