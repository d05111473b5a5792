// Package command has what all commands of `berth` share: their flags, input and output, the connection to the runtime,
// lists, completion, and errors with their exit codes. The commands are in a package for each group of `berth --help`.
package command
