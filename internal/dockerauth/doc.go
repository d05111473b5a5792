// Package dockerauth finds the credentials for an image's registry in a config.json, as `docker login` and
// `podman login` write it, and asks the credential helpers that such a file names. No error of it quotes the file or
// what a helper has printed.
package dockerauth
