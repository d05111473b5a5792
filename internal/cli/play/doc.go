// Package play runs all pods of a manifest for `berth run`: it reads the files, starts the pods, shows their output and
// removes them at the end.
package play
