package images

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/distribution/reference"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/credentials"
	"berth/internal/cli/lookup"
	"berth/internal/cli/streaming"
	"berth/internal/dockerauth"
)

const authFileUsage = "file of credentials (default $REGISTRY_AUTH_FILE, else ~/.docker/config.json)"

func loginCommand(a *command.App) *cobra.Command {
	var user, file string
	var stdin bool
	cmd := &cobra.Command{
		Use:   "login [REGISTRY]",
		Short: "Check credentials for a registry, and keep them for pulls",
		Long: `Check with a registry, docker.io if none is named, that it takes a user's name and password, and keep them in
the file that pull, push and run read: docker's config.json, or the credential helper that this file names. The daemon
asks the registry, over the way by which it pulls. If the registry does not take them, nothing is kept.

The name and the password are asked for on the terminal. In scripts, give --username with --password-stdin.`,
		Example: "  berth login registry.example\n  echo secret | berth login -u robot --password-stdin registry.example",
		Args:    command.Arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			wrong := func(err error) error { return command.Usage(cmd, err) }
			registry, err := registryOf(args)
			if err != nil {
				return wrong(err)
			}
			user, password, err := askCredentials(cmd.Context(), a, registry, user, stdin)
			if err != nil {
				return wrong(err)
			}
			return login(cmd.Context(), a, authFile(file), registry, user, password)
		},
	}
	cmd.Flags().StringVarP(&user, "username", "u", "", "user at the registry")
	cmd.Flags().BoolVar(&stdin, "password-stdin", false, "read the password from standard input")
	cmd.Flags().StringVar(&file, "auth-file", "", authFileUsage)
	_ = cmd.MarkFlagFilename("auth-file")
	return cmd
}

func logoutCommand(a *command.App) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "logout [REGISTRY]",
		Short: "Remove the credentials for a registry",
		Long: `Remove the credentials for a registry, docker.io if none is named, from the file that login writes, or from the
credential helper that this file names.`,
		Example: "  berth logout registry.example",
		Args:    command.Arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			registry, err := registryOf(args)
			if err != nil {
				return command.Usage(cmd, err)
			}
			path := authFile(file)
			known, err := dockerauth.Forget(cmd.Context(), path, registry)
			if err == nil && !known {
				err = &lookup.NotFoundError{Kind: "login to", Name: registry, Try: "The file is " + path + "."}
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.Out, "logged out of %s\n", registry)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "auth-file", "", authFileUsage)
	_ = cmd.MarkFlagFilename("auth-file")
	return cmd
}

func authFile(named string) string {
	if named != "" {
		return named
	}
	return credentials.DefaultPath()
}

// registryOf is the registry that is named, without what people write before it.
func registryOf(args []string) (string, error) {
	if len(args) == 0 {
		return "docker.io", nil
	}
	name := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(args[0], "https://"), "http://"), "/")
	if name == "index.docker.io" || name == "registry-1.docker.io" {
		name = "docker.io"
	}
	named, err := reference.ParseNormalizedNamed(name + "/image")
	if err != nil || reference.Domain(named) != name {
		return "", fmt.Errorf("registry %q is not a host or host:port", args[0])
	}
	return name, nil
}

// askCredentials asks for what flags do not say.
func askCredentials(ctx context.Context, a *command.App, registry, user string, stdin bool) (name, password string,
	err error) {
	switch {
	case stdin && user == "":
		return "", "", errors.New("--password-stdin needs --username")
	case !stdin && !streaming.IsTerminal(a.In):
		return "", "", errors.New("standard input is not a terminal: give --username and --password-stdin")
	}
	if user == "" {
		fmt.Fprintf(a.Err, "user at %s: ", registry)
		if user, err = line(a.Input(ctx)); err != nil {
			fmt.Fprintln(a.Err)
			return "", "", fmt.Errorf("read the user's name: %w", err)
		}
		if user == "" {
			return "", "", errors.New("no user's name was given")
		}
	}
	if stdin {
		password, err = line(a.Input(ctx))
	} else {
		password, err = hidden(ctx, a, "password: ")
	}
	if err != nil {
		return "", "", fmt.Errorf("read the password: %w", err)
	}
	if password == "" {
		return "", "", errors.New("no password was given")
	}
	return user, password, nil
}

// hidden asks for a line that the terminal does not show. Whoever sees the prompt may answer at once, so the terminal
// shows nothing from before the prompt on.
func hidden(ctx context.Context, a *command.App, prompt string) (string, error) {
	fd := int(a.In.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return "", err
	}
	quiet := *before
	quiet.Lflag = quiet.Lflag&^unix.ECHO | unix.ICANON | unix.ISIG
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &quiet); err != nil {
		return "", err
	}
	defer func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, before) }()
	fmt.Fprint(a.Err, prompt)
	typed, err := line(a.Input(ctx))
	fmt.Fprintln(a.Err)
	return typed, err
}

// line reads one line, without its end. What follows it is not needed.
func line(in io.Reader) (string, error) {
	text, err := bufio.NewReader(io.LimitReader(in, 64<<10)).ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return strings.TrimRight(text, "\r\n"), err
}

func login(ctx context.Context, a *command.App, path, registry, user, password string) error {
	if path == "" {
		return errors.New("there is no home directory for the credentials: name a file with --auth-file")
	}
	conn, err := a.Dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	response, err := conn.Pulls.Login(ctx, &berthv1.LoginRequest{Registry: registry,
		Auth: &berthv1.Auth{Username: user, Password: password}})
	if connection.Code(err) == codes.Unauthenticated { // the registry's words are enough
		return errors.New(status.Convert(err).Message())
	}
	if err != nil {
		return connection.Plain(err)
	}
	if !response.GetAsked() {
		fmt.Fprintf(a.Err, "note: %s asks for no credentials when it is greeted: they are kept unchecked\n", registry)
	}
	if err := dockerauth.Save(ctx, path, registry, user, password); err != nil {
		return fmt.Errorf("keep the credentials: %w", err)
	}
	_, err = fmt.Fprintf(a.Out, "logged in to %s as %s\n", registry, user)
	return err
}
