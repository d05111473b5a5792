// Package dockerauth finds the credentials for an image's registry in a config.json, as `docker login` and `podman
// login` write it, and runs the credential helpers that the file names. Its errors never contain text of the file or
// output of a helper.
package dockerauth
