// Package debian takes programs out of Debian packages, with the shared libraries that they need, as entries
// of an image's layer. Packages are downloaded by apt-get into a directory that outlives a run; nothing is installed.
package debian
