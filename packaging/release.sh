#!/bin/sh
# Makes what a release publishes, in dist/: packaging/release.sh ARCH... These are the source, and of each architecture
# the packages, the tarball and the bill of materials, with checksums of all. The version is that of the tag at this
# commit. Says how a maintainer signs it. `make build` comes first.
set -eu
umask 022
cd "$(dirname "$0")/.."
version=$(packaging/version.sh "${VERSION:-}")
case ${VERSION:+given}$version in
given*) ;;
*dirty)
	echo "the tree has changes that are not committed: git status" >&2
	exit 1
	;;
*+* | 0.1.0-dev)
	echo "this commit has no tag of a version, such as v1.2.3: git tag -s v1.2.3" >&2
	echo "make release VERSION=1.2.3 makes the same files of any commit, to try it" >&2
	exit 1
	;;
esac
rm -rf dist
mkdir dist
git archive --prefix="berth-$version/" --output="dist/berth-$version.tar" HEAD
gzip -9n "dist/berth-$version.tar"
echo "dist/berth-$version.tar.gz"
VERSION=$version packaging/dist.sh "$@"
(cd dist && sha256sum --quiet -c SHA256SUMS)
cat <<END

dist/ has the release $version. What is left for a maintainer:

    git verify-tag v$version
    cd dist
    gpg --armor --detach-sign SHA256SUMS

Publish all files of dist/, SHA256SUMS.asc among them. Users check them with

    gpg --verify SHA256SUMS.asc SHA256SUMS && sha256sum --ignore-missing -c SHA256SUMS
END
