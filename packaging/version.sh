#!/bin/sh
# Prints the version of this tree, a semantic one (semver.org), as the CRI wants it of a runtime: 1.2.3 at the tag
# v1.2.3, 1.2.3+4.gCOMMIT four commits later, 0.1.0-dev+COMMIT before the first tag, and 0.1.0-dev outside of Git;
# what is not committed adds .dirty. An argument is a version to print in place of that, with or without a v before it:
# one that is not semantic is refused.
set -eu
cd "$(dirname "$0")/.."

number='(0|[1-9][0-9]*)'
word='(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)'
semantic="^$number\\.$number\\.$number(-$word(\\.$word)*)?(\\+[0-9A-Za-z-]+(\\.[0-9A-Za-z-]+)*)?\$"
check() { printf '%s\n' "$1" | grep -Eqx -- "$semantic"; }

if [ -n "${1:-}" ]; then
	check "${1#v}" || { echo "$1 is not a semantic version, such as 1.2.3 or v1.2.3" >&2; exit 1; }
	echo "${1#v}"
	exit 0
fi
# A directory inside of somebody else's repository is not a tree of Berth.
if [ "$(git rev-parse --show-cdup 2>/dev/null || echo none)" != "" ] ||
	! commit=$(git rev-parse --short HEAD 2>/dev/null); then
	echo 0.1.0-dev
	exit 0
fi
version=0.1.0-dev+$commit
separator=.
if described=$(git describe --tags --long --match 'v[0-9]*.[0-9]*.[0-9]*' 2>/dev/null); then
	described=${described#v} # 1.2.3-4-gCOMMIT
	commit=${described##*-}
	tagged=${described%-*}
	after=${tagged##*-}
	tagged=${tagged%-*}
	if check "$tagged"; then # a tag such as v1.2.3.4 says no version
		version=$tagged
		separator=+
		case $tagged in *+*) separator=. ;; esac
		[ "$after" = 0 ] || { version=$version$separator$after.$commit && separator=.; }
	fi
fi
[ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || version=$version${separator}dirty
echo "$version"
