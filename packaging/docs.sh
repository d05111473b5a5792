#!/bin/sh
# Installs the documents below a directory, in the folders that they have in the repository, so that links between them
# resolve there too: packaging/docs.sh DIR. Links to source code, which is not installed, become plain text.
set -eu
to=$1
cd "$(dirname "$0")/.."
install -d "$to/docs/adr" "$to/examples"
install -m 0644 LICENSE "$to/"
install -m 0644 docs/*.svg "$to/docs/"
install -m 0644 examples/*.yaml "$to/examples/"
for page in *.md docs/*.md docs/adr/*.md; do
	sed -zE 's#\[([^]]*)\]\((\.\./)*(api|cmd|internal|packaging|test|tools)/[^)]*\)#\1#g' "$page" >"$to/$page"
	chmod 0644 "$to/$page"
done
