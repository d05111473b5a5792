package dockerauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/firstbytes"
	"berth/internal/model"
)

const (
	// helperTimeout is how long a credential helper may take: those of clouds ask a service.
	helperTimeout = 20 * time.Second
	// maxHelperOutput is how many bytes a helper may print. Tokens of clouds have some kilobytes.
	maxHelperOutput = 256 << 10
	// none is what helpers print, and exit with 1, where they have nothing for a registry.
	none = "credentials not found in native keychain"
	// identity is the user's name that says that the secret is an identity token.
	identity = "<token>"
)

// program is the executable of a helper.
func program(name string) string { return "docker-credential-" + name }

// CheckHelpers says which of the helpers that the file names cannot be executed.
func (f *File) CheckHelpers() error {
	var errs []error
	for _, name := range f.helpers() {
		if _, err := exec.LookPath(program(name)); err != nil {
			errs = append(errs, fmt.Errorf("%s: credential helper %w", f.path, err))
		}
	}
	return errors.Join(errs...)
}

// helperError is a helper that has failed.
func helperError(host, name string, kind error, format string, args ...any) error {
	return fmt.Errorf("credentials for %s: %s %s: %w", host, program(name), fmt.Sprintf(format, args...), kind)
}

// errNone means that a helper has nothing for a registry.
var errNone = errors.New(none)

// run has a helper do what a verb says. The error is errNone where it has nothing for the registry.
func (f *File) run(ctx context.Context, name, host, verb, input string) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	out := &firstbytes.Buffer{Left: maxHelperOutput}
	cmd := exec.CommandContext(limited, program(name), verb)
	cmd.Stdin = strings.NewReader(input)
	cmd.Stdout = out
	firstbytes.Group(cmd) // a helper may be a script
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case limited.Err() != nil:
		return nil, helperError(host, name, errdefs.ErrUnavailable, "has not answered within %s", f.timeout)
	case out.Over:
		return nil, helperError(host, name, errdefs.ErrFailedPrecondition, "has printed more than %d bytes", maxHelperOutput)
	case errors.As(err, &exit) && strings.TrimSpace(out.String()) == none:
		return nil, errNone
	case errors.As(err, &exit):
		return nil, helperError(host, name, errdefs.ErrUnavailable,
			"has ended with %s; what it printed is left out, since a secret may be in it", exit.ProcessState)
	case err != nil:
		return nil, helperError(host, name, errdefs.ErrFailedPrecondition, "could not be run: %v", err)
	}
	return out.Bytes(), nil
}

// ask has a helper tell the credentials for a registry; nil where it has none.
func (f *File) ask(ctx context.Context, name, host string) (*model.Auth, error) {
	out, err := f.run(ctx, name, host, "get", serverOf(host))
	if errors.Is(err, errNone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var answer struct{ Username, Secret string }
	if json.Unmarshal(out, &answer) != nil { // its error may quote the secret
		return nil, helperError(host, name, errdefs.ErrFailedPrecondition, "has printed no JSON of credentials")
	}
	switch {
	case answer.Secret == "":
		return nil, nil
	case answer.Username == identity:
		return &model.Auth{IdentityToken: answer.Secret}, nil
	case answer.Username == "":
		return nil, helperError(host, name, errdefs.ErrFailedPrecondition,
			"has printed a secret without a user's name")
	}
	return &model.Auth{Username: answer.Username, Password: answer.Secret}, nil
}
