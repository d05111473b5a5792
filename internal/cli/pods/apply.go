package pods

import (
	"context"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"berth/internal/cli/apply"
	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/credentials"
	"berth/internal/cli/images"
	"berth/internal/cli/play"
	"berth/internal/cli/poddir"
	"berth/internal/manifest"
)

type applyOptions struct {
	manifest.Options
	once bool
	auth credentials.Flags
}

func applyCommand(a *command.App) *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use:   "apply DIR",
		Short: "Keep the pods of a directory of manifests running",
		Long: `Keep the pods of the manifests in a directory running, as a kubelet keeps static pods: the files *.yaml, *.yml
and *.json, with the documents that berth run takes. Names that begin with a dot are left out.

The command runs until somebody ends it. A new file starts its pods, a changed one replaces the pods whose manifest has
changed, and the pods of a removed one are stopped and removed. A file that is wrong is reported, and its pods stay as
they are until it is right again. Containers are started again as restartPolicy says, and their probes and hooks run. A
pod without restartPolicy counts as Always, where berth run runs it once.

Pods run on when the command ends, however it does, unless it is ended because the system shuts down: then it stops
them first, with their hooks and their grace periods. The next berth apply of the directory goes on with those whose
manifest is the same, without starting them again. After a reboot it starts them. It waits for berthd if that does not
run yet.

With --once, the command ends once all pods run, with exit code 1 if any of them failed or a file is wrong. Nothing
starts containers again then, and no probes run. berth down DIR removes the pods.

The systemd unit berth-apply.service runs this command for /etc/berth/manifests.`,
		Example: "  berth apply --once examples\n  berth apply /etc/berth/manifests",
		Args:    command.Arguments(cobra.ExactArgs(1)),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error { return applyDirectory(cmd, a, args[0], &o) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.once, "once", false, "start the pods, and leave them to themselves")
	flags.BoolVar(&o.IgnoreUnsupported, "ignore-unsupported", false,
		"leave out unsupported fields of a manifest, with a warning for each")
	o.auth.Add(cmd)
	return cmd
}

func applyDirectory(cmd *cobra.Command, a *command.App, name string, o *applyOptions) error {
	ctx := cmd.Context()
	if err := o.auth.Read(a.Input(ctx)); err != nil {
		return command.Usage(cmd, err)
	}
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory; `berth run` runs a file", name)
	}
	directory, err := play.Directory(name)
	if err != nil {
		return err
	}
	if !utf8.ValidString(directory) { // annotations of pods have it
		return fmt.Errorf("the name %q is not UTF-8: rename the directory", directory)
	}
	socket, err := connection.SocketPath(a.Address)
	if err != nil {
		return err
	}
	store := &poddir.Store{Root: a.DataDir, Address: "unix://" + socket}
	release, err := store.Claim(directory)
	if err != nil {
		return err
	}
	defer release()
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		return err
	}
	notes := &apply.Lines{Out: a.Err}
	dial := connection.Dial
	if !o.once {
		dial = func(ctx context.Context, address string) (*connection.Connection, error) {
			return connection.Await(ctx, address, func(path string) {
				fmt.Fprintf(notes, "waiting for berthd: no runtime answers on %s\n", path)
			})
		}
	}
	conn, err := dial(ctx, a.Address)
	switch {
	case err != nil && ctx.Err() != nil && !o.once:
		return nil // it was ended while it waited
	case err != nil:
		return err
	}
	defer conn.Close()
	applier := &apply.Applier{Conn: conn, Store: store, Directory: directory, Options: o.Options, Notes: notes,
		Once: o.once, ShutsDown: apply.SystemStops, StillStopping: stillStopping}
	applier.Pull = func(ctx context.Context, image string, secrets [][]byte) (string, error) {
		auth, err := o.auth.With(secrets)
		if err != nil {
			return "", fmt.Errorf("imagePullSecrets: %w", err)
		}
		fmt.Fprintf(notes, "pulling %s\n", image)
		return images.Pull(ctx, a, conn, image, auth, io.Discard)
	}
	return applier.Run(ctx)
}

// stillStopping has systemd wait longer for the end of this service.
func stillStopping() {
	_, _ = daemon.SdNotify(false, fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d", daemon.SdNotifyStopping,
		(3*apply.StoppingPeriod).Microseconds()))
}
