package credentials

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/dockerauth"
)

// Flags are the options of a command that say what to authenticate with.
type Flags struct {
	username      string
	PasswordStdin bool // standard input is taken
	file          string

	said    *cri.AuthConfig // read once
	secrets []*File         // of the pod for which an image is pulled
}

// With returns the flags with credentials of a pod's imagePullSecrets, each a config.json. They come after those that
// the flags say, and before the user's file.
func (f *Flags) With(secrets [][]byte) (*Flags, error) {
	with := *f
	with.secrets = nil
	for _, data := range secrets {
		file, err := dockerauth.Parse(data)
		if err != nil {
			return nil, err
		}
		with.secrets = append(with.secrets, &File{file})
	}
	return &with, nil
}

// Add gives the flags to a command.
func (f *Flags) Add(cmd *cobra.Command) { f.add(cmd, "u") }

// AddLong is Add for a command whose -u is something else.
func (f *Flags) AddLong(cmd *cobra.Command) { f.add(cmd, "") }

func (f *Flags) add(cmd *cobra.Command, shorthand string) {
	cmd.Flags().StringVarP(&f.username, "username", shorthand, "",
		"user at the registry, together with --password-stdin")
	cmd.Flags().BoolVar(&f.PasswordStdin, "password-stdin", false, "read the password from standard input")
	cmd.Flags().StringVar(&f.file,
		"auth-file", "", "credentials as docker's config.json (default $REGISTRY_AUTH_FILE, else ~/.docker/config.json)")
	_ = cmd.MarkFlagFilename("auth-file")
}

// Read takes the password from in where it is said to be there.
func (f *Flags) Read(in io.Reader) error {
	if (f.username != "") != f.PasswordStdin {
		return errors.New("--username and --password-stdin go together")
	}
	if f.username == "" {
		return nil
	}
	line, err := bufio.NewReader(io.LimitReader(in, 64<<10)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the password: %w", err)
	}
	password := strings.TrimRight(line, "\r\n")
	if password == "" {
		return errors.New("--password-stdin: standard input holds no password")
	}
	f.said = &cri.AuthConfig{Username: f.username, Password: password}
	return nil
}

// Find returns the credentials for an image's registry: those that the flags say, or those of the file; nil: none.
func (f *Flags) Find(ctx context.Context, image string) (*cri.AuthConfig, error) {
	if f.said != nil {
		return f.said, nil
	}
	for _, secret := range f.secrets {
		if found, err := secret.Find(ctx, image); found != nil || err != nil {
			return found, err
		}
	}
	file, err := Open(f.file)
	if err != nil {
		return nil, err
	}
	return file.Find(ctx, image)
}

// Own are credentials as Berth's own API has them; nil: none.
func Own(found *cri.AuthConfig) *berthv1.Auth {
	if found == nil {
		return nil
	}
	return &berthv1.Auth{
		Username: found.Username, Password: found.Password, Auth: found.Auth, ServerAddress: found.ServerAddress,
		IdentityToken: found.IdentityToken, RegistryToken: found.RegistryToken,
	}
}
