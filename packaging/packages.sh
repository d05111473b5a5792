#!/bin/sh
# Installs those of the named Debian packages that are missing, and nothing where all are there. Where there is no dpkg,
# nobody can say what is there.
set -eu
if ! command -v dpkg-query >/dev/null; then
	echo "This is no Debian. Needed is what these packages of Debian hold: $*" >&2
	exit 0
fi
missing=
for package in "$@"; do
	status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
	[ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ]; then
	echo "Missing packages:$missing" >&2
	echo "Install them with: sudo apt-get install$missing" >&2
	exit 1
fi
echo "installing$missing"
export DEBIAN_FRONTEND=noninteractive
# The lists of packages may be old or absent.
apt-get install -y --no-install-recommends $missing >/dev/null 2>&1 ||
	{ apt-get update -q && apt-get install -y --no-install-recommends $missing; }
