package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"berth/internal/cli/command"
	"berth/internal/cli/credentials"
	"berth/internal/cli/imagepod"
	"berth/internal/cli/images"
	"berth/internal/cli/logview"
	"berth/internal/cli/play"
	"berth/internal/cli/streaming"
	"berth/internal/cli/table"
	"berth/internal/manifest"
)

type runOptions struct {
	manifest.Options
	files   []string
	detach  bool
	replace bool
	quiet   bool
	restore string
	auth    credentials.Flags
	pod     imagepod.Options // of an image
}

func runCommand(a *command.App) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run FILE | run IMAGE [COMMAND [ARG...]]",
		Short: "Run an image, or the pods of a Kubernetes manifest",
		Long: `Run a container of an image, or the pods of a Kubernetes manifest. The argument is a manifest if it is -,
ends in .yaml, .yml or .json, or is the name of a file or directory that exists; otherwise it is an image. If an image
has the name of a file, write its tag or its registry: nginx:latest.

An image runs as the only container of a pod. Without -d its output is shown until it has ended, and then the pod is
removed; --rm=false keeps it, stopped. With -it, Ctrl-P Ctrl-Q leaves the pod running, as -d does. The exit code is that
of the command, 127 if there is no such program and 126 if it cannot be executed. Ctrl-C stops the pod. -i passes
standard input to the command, and -t gives it a terminal. Flags stand before the image: what follows it is the command.

A manifest is YAML or JSON with documents of kind Pod, Deployment, ReplicaSet, StatefulSet, DaemonSet and Job, and the
ConfigMaps, Secrets and PersistentVolumeClaims to which they refer, also as items of a List. -f names several files. A
directory stands for its files *.yaml, *.yml and *.json. If FILE is -, the manifest is read from standard input.

Without -d, the output of all containers is shown until they have ended or somebody types Ctrl-C. Then the pods are
stopped and removed. The exit code is that of the first container that failed. With -d, the pods are left running: use
berth logs and berth stop, and berth down to remove the pods of the manifest.

While the command runs, it starts containers again as restartPolicy says, and runs their probes and hooks. Without
restartPolicy, each container runs once. With -d, nothing starts containers again.

A manifest with fields that are not supported is refused with the paths of these fields. With --ignore-unsupported,
these fields are left out.

With --restore, the containers of a manifest's pod go on where berth checkpoint --pod has written them down.`,
		Example: "  berth run -it docker.io/library/busybox:1.37 sh\n" +
			"  berth run -d --name page -p 8080:80 -v /srv:/www:ro docker.io/library/busybox:1.37 httpd -f -h /www\n" +
			"  berth run examples/hello.yaml\n  berth run -d --name hello2 examples/hello.yaml\n" +
			"  kubectl get pod web -o yaml | berth run -",
		ValidArgsFunction: completeRun(a),
		RunE:              func(cmd *cobra.Command, args []string) error { return run(a, cmd, args, &o) },
	}
	cmd.Flags().SetInterspersed(false) // what follows an image is the command's
	manifestFlags(cmd, &o.files, &o.Options)
	flags := cmd.Flags()
	flags.BoolVarP(&o.detach, "detach", "d", false, "leave the pods running")
	flags.BoolVar(&o.replace, "replace", false,
		"first stop and remove pods that have the same names, or are of the same workloads")
	flags.BoolVar(&o.IgnoreUnsupported, "ignore-unsupported", false,
		"leave out unsupported fields of a manifest, with a warning for each")
	flags.StringVar(&o.restore, "restore", "", "the `directory` of a checkpoint, in which the manifest's pod goes on")
	flags.BoolVarP(&o.quiet, "quiet", "q", false, "no progress; with -d only the pods' IDs")
	o.auth.AddLong(cmd)
	o.pod.Add(flags)
	_ = cmd.RegisterFlagCompletionFunc("pull",
		cobra.FixedCompletions(imagepod.PullWords, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("network",
		cobra.FixedCompletions([]string{"host"}, cobra.ShellCompDirectiveNoFileComp))
	a.Structured(cmd)
	return cmd
}

// completeRun offers images, and leaves files to the shell. What follows an image is the command's.
func completeRun(a *command.App) command.Completer {
	images := a.Complete(1, command.ImageNames)
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		names, _ := images(cmd, args, typed)
		return names, cobra.ShellCompDirectiveDefault
	}
}

// run runs an image, or the pods of a manifest.
func run(a *command.App, cmd *cobra.Command, args []string, o *runOptions) error {
	wrong := func(err error) error { return command.Usage(cmd, err) }
	if len(args) > 0 && len(o.files) == 0 && !play.IsManifest(args[0]) {
		return runImage(a, cmd, args[0], args[1:], o)
	}
	if len(args) > 1 {
		// Flags may follow the name of a manifest.
		cmd.Flags().SetInterspersed(true)
		if err := cmd.Flags().Parse(args[1:]); err != nil {
			return wrong(err)
		}
		args = append(args[:1:1], cmd.Flags().Args()...)
	}
	if len(args) > 1 {
		return wrong(fmt.Errorf("%s is a file, and so a manifest, which has its commands in it\n"+
			"If the image of that name is meant, write its tag: %[1]s:latest", args[0]))
	}
	if len(args)+len(o.files) == 0 {
		return wrong(errors.New("give a FILE or IMAGE, or files with -f"))
	}
	if err := oneManifest(&o.files)(cmd, args); err != nil {
		return wrong(err)
	}
	o.files = append(o.files, args...)
	if given := o.pod.Given(); len(given) > 0 {
		return wrong(fmt.Errorf("%s is for an image; %s is a manifest, which has a field for that", given[0], o.files[0]))
	}
	if err := checkRun(cmd.Context(), a, o, slices.Contains(o.files, "-")); err != nil {
		return wrong(err)
	}
	documents, err := play.Read(o.files, a.Input(cmd.Context()), o.Options)
	if err != nil {
		return err
	}
	player := &play.Player{}
	if o.restore != "" {
		if documents.Several() {
			return wrong(errors.New("--restore needs a manifest with one pod"))
		}
		if player.Restore, err = filepath.Abs(o.restore); err != nil {
			return err
		}
	}
	return runPods(cmd.Context(), a, documents, o, player)
}

// checkRun refuses flags that exclude each other, and reads the password.
func checkRun(ctx context.Context, a *command.App, o *runOptions, input bool) error {
	switch {
	case a.Format.Structured() && !o.detach:
		return errors.New("-o needs -d, since it prints pods that are left running")
	case input && o.auth.PasswordStdin:
		return errors.New("standard input cannot be both the password and what the pod gets")
	}
	return o.auth.Read(a.Input(ctx))
}

// runImage runs a container of an image.
func runImage(a *command.App, cmd *cobra.Command, image string, args []string, o *runOptions) error {
	wrong := func(err error) error { return command.Usage(cmd, err) }
	pod := &o.pod
	attached := !o.detach && (pod.Stdin || pod.TTY)
	switch {
	case o.IgnoreUnsupported:
		return wrong(errors.New("--ignore-unsupported is for a manifest"))
	case o.restore != "":
		return wrong(errors.New("--restore is for a manifest"))
	case o.detach && slices.Contains(pod.Given(), "--rm"):
		return wrong(errors.New("--rm and -d exclude each other: nothing runs that could remove the pod. " +
			"`berth rm` removes it"))
	case attached && pod.TTY && pod.Stdin && !streaming.IsTerminal(a.In):
		return wrong(errNoTerminal)
	}
	if err := checkRun(cmd.Context(), a, o, attached && pod.Stdin); err != nil {
		return wrong(err)
	}
	documents, err := pod.Documents(o.Name, image, args, o.detach)
	if err != nil {
		return wrong(err)
	}
	player := &play.Player{Plain: !o.detach, Keep: !pod.Remove}
	if attached {
		player.Join = &play.Join{TTY: pod.TTY, Stdin: pod.Stdin, Err: a.Err, Run: joined(a, pod)}
		if pod.TTY {
			player.Join.Width, player.Join.Height = streaming.Size(a.In)
		}
	}
	return runPods(cmd.Context(), a, documents, o, player)
}

// joined runs sessions of a container that is this command's. The input of one without a terminal has no output.
func joined(a *command.App, pod *imagepod.Options) func(context.Context, bool,
	func(context.Context) (string, error)) error {
	return func(ctx context.Context, tty bool, address func(context.Context) (string, error)) error {
		if tty {
			if !pod.Stdin {
				return session(ctx, a, false, true, nil, address)
			}
			return attached(ctx, a, true, true, address)
		}
		return (&streaming.Session{URL: address, Stdin: a.In, StdinEnds: true}).Run(ctx)
	}
}

// oneManifest requires a manifest as the argument, or files of one as flags.
func oneManifest(files *[]string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args)+len(*files) == 0 || len(args) > 1 {
			return errors.New("give one FILE, or files with -f")
		}
		return nil
	}
}

// manifestFlags are the flags of the commands that read manifests.
func manifestFlags(cmd *cobra.Command, files *[]string, options *manifest.Options) {
	cmd.Flags().StringArrayVarP(files, "filename", "f", nil,
		"a file or directory of the manifest; may be given more than once")
	cmd.Flags().StringVar(&options.Name, "name", "", "name of the pod or workload, in place of metadata.name")
}

// runPods starts all pods, and without -d follows them to their end.
func runPods(ctx context.Context, a *command.App, documents *manifest.Documents, o *runOptions,
	player *play.Player) error {
	conn, err := a.Dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	notes, progress := a.Err, a.RawErr
	if o.quiet || a.Format.Structured() {
		notes, progress = io.Discard, io.Discard
	}
	player.Conn, player.Store, player.Notes, player.Err = conn, a.Store(conn), notes, a.Err
	player.Detach, player.Replace = o.detach, o.replace
	player.Printer = &logview.Printer{Out: a.Out, Colored: command.Colored(a.Out)}
	if player.Plain {
		player.Printer.Err = a.RawErr
	}
	player.Pull = func(ctx context.Context, image string, secrets [][]byte) (string, error) {
		auth, err := o.auth.With(secrets)
		if err != nil {
			return "", fmt.Errorf("imagePullSecrets: %w", err)
		}
		return images.Pull(ctx, a, conn, image, auth, progress)
	}
	started, err := player.Run(ctx, documents)
	if err != nil {
		return command.ProgramError(err)
	}
	if !o.detach {
		return nil
	}
	if a.Format.Structured() {
		return table.Document(a.Out, a.Format, started)
	}
	for _, pod := range started {
		if _, err := fmt.Fprintln(a.Out, pod.ID); err != nil {
			return err
		}
	}
	return nil
}
