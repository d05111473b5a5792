package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"berth/internal/cli/connection"
	"berth/internal/cli/streaming"
)

// Exit codes beside those of the commands that are run.
const (
	ExitError       = 1
	ExitUsage       = 2
	ExitFile        = 78  // EX_CONFIG of sysexits.h: units are not started again after it
	exitForbidden   = 126 // a shell's for a command that cannot be run
	exitMissing     = 127 // and for one that does not exist
	exitInterrupted = 130
)

// Exit says on errOut what the error of a command line is, and returns its exit code.
func Exit(ctx context.Context, err error, errOut io.Writer) int {
	var exit *streaming.ExitError
	var program *programError
	var usage *usageError
	var file *fileError
	var address *connection.AddressError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.Code
	case errors.As(err, &program):
		fmt.Fprintf(errOut, "berth: %s\n", connection.Message(err))
		return program.code
	case errors.Is(err, syscall.EPIPE): // such as `berth logs | head`
		return 0
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || connection.Code(err).String() == "Canceled"):
		return exitInterrupted
	case errors.As(err, &usage), errors.As(err, &address), strings.HasPrefix(err.Error(), "unknown command"):
		fmt.Fprintf(errOut, "berth: %v\n", err)
		return ExitUsage
	case errors.As(err, &file):
		fmt.Fprintf(errOut, "berth: %v\n", err)
		return ExitFile
	}
	fmt.Fprintf(errOut, "berth: %s\n", connection.Message(err))
	return ExitError
}

// usageError is a command line that cannot be meant.
type usageError struct {
	err     error
	command string
}

// Usage is the error of a command line that cannot be meant. It says how to get the command's help.
func Usage(cmd *cobra.Command, err error) error { return &usageError{err, cmd.CommandPath()} }

func (e *usageError) Error() string {
	return fmt.Sprintf("%v\n`%s --help` says how it is used.", e.err, e.command)
}

func (e *usageError) Unwrap() error { return e.err }

// fileError is a configuration with which a command that runs on cannot begin, however often it is started.
type fileError struct{ err error }

// FileError marks the error of a configuration with which a command that runs on cannot begin, however often its unit
// starts it.
func FileError(err error) error { return &fileError{err} }

func (e *fileError) Error() string { return e.err.Error() }

func (e *fileError) Unwrap() error { return e.err }

// programError is a program in a container that could not be run, with the exit code that a shell has for it.
type programError struct {
	err  error
	code int
}

func (e *programError) Error() string { return e.err.Error() }

func (e *programError) Unwrap() error { return e.err }

var (
	programMissing   = regexp.MustCompile(`exec: "[^"]*": (executable file not found|no such file or directory)`)
	programForbidden = regexp.MustCompile(`exec: "[^"]*": (permission denied|exec format error|is a directory)` +
		`|enter working directory "[^"]*": |chdir to cwd \("[^"]*"\)`)
)

// ProgramError gives an error about a program in a container that does not exist, or that cannot be run, as where its
// working directory is missing, the exit code of a shell: 127 and 126. Others stay as they are.
func ProgramError(err error) error {
	switch {
	case err == nil:
		return nil
	case programMissing.MatchString(err.Error()):
		return &programError{err, exitMissing}
	case programForbidden.MatchString(err.Error()):
		return &programError{err, exitForbidden}
	}
	return err
}

// Arguments makes the errors of a validator usage errors.
func Arguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return Usage(cmd, err)
		}
		return nil
	}
}

// Subcommand refuses what is no command of cmd, and names those that are spelt like it.
func Subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += "\nDid you mean " + strings.Join(near, " or ") + "?"
	}
	return Usage(cmd, errors.New(text))
}
