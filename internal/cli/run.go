package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/credentials"
	"berth/internal/cli/crilog"
	"berth/internal/cli/launch"
	"berth/internal/cli/logview"
	"berth/internal/cli/lookup"
	"berth/internal/cli/streaming"
	"berth/internal/cli/table"
	"berth/internal/manifest"
)

// startedPod is the report of `run -d` about one pod.
type startedPod struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Namespace  string            `json:"namespace"`
	IPs        []string          `json:"ips,omitempty"`
	Containers map[string]string `json:"containers"` // IDs by name
	Took       time.Duration     `json:"nanoseconds"`
}

type runOptions struct {
	manifest.Options
	detach  bool
	replace bool
	quiet   bool
	auth    credentials.Flags
}

func (a *app) runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run FILE",
		Short: "Run the pods of a Kubernetes manifest",
		Long: `Run the pods of a Kubernetes manifest: one or more documents of kind Pod, apiVersion v1, in YAML or JSON.
If FILE is -, the manifest is read from standard input.

Without -d, the output of all containers is shown until they have ended or somebody types Ctrl-C. Then the pods are
stopped and removed. The exit code is that of the first container that failed. With -d, the pods are left running: use
berth logs, berth stop and berth rm.

Each container runs once, and nothing restarts it. A manifest with fields that are not supported (such as probes, and
volumes of other kinds than hostPath and emptyDir) is refused with the paths of these fields. With --ignore-unsupported,
these fields are left out.`,
		Example: "  berth run examples/hello.yaml\n  berth run -d --name hello2 examples/hello.yaml\n" +
			"  kubectl get pod web -o yaml | berth run --ignore-unsupported -",
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.format.Structured() && !o.detach {
				return &usageError{errors.New("-o needs -d, since it prints pods that are left running"), cmd.CommandPath()}
			}
			if args[0] == "-" && o.auth.PasswordStdin {
				return &usageError{errors.New("standard input cannot be both the manifest and the password"), cmd.CommandPath()}
			}
			if err := o.auth.Read(a.in); err != nil {
				return &usageError{err, cmd.CommandPath()}
			}
			pods, err := a.readManifest(args[0], o.Options)
			if err != nil {
				return err
			}
			return a.runPods(cmd.Context(), pods, &o)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&o.detach, "detach", "d", false, "leave the pods running")
	flags.StringVar(&o.Name, "name", "", "name of the pod, in place of metadata.name")
	flags.BoolVar(&o.replace, "replace", false, "first stop and remove pods that have the same names")
	flags.BoolVar(&o.IgnoreUnsupported, "ignore-unsupported", false,
		"leave out unsupported fields, with a warning for each")
	flags.BoolVarP(&o.quiet, "quiet", "q", false, "no progress; with -d only the pods' IDs")
	o.auth.Add(cmd)
	a.structured(cmd)
	return cmd
}

func (a *app) readManifest(name string, options manifest.Options) ([]*manifest.Pod, error) {
	var in io.Reader = a.in
	shown := "standard input"
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in, shown = file, name
	}
	pods, err := manifest.Decode(in, options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", shown, err)
	}
	for _, pod := range pods {
		for _, warning := range pod.Warnings {
			fmt.Fprintf(a.err, "warning: pod %s: %s\n", pod.Name, warning)
		}
	}
	return pods, nil
}

// runPods starts all pods, and without -d follows them to their end.
func (a *app) runPods(ctx context.Context, pods []*manifest.Pod, o *runOptions) error {
	conn, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	host, err := launch.ReadHost()
	if err != nil {
		return err
	}
	notes := a.err
	if o.quiet || a.format.Structured() {
		notes = io.Discard
	}
	// The watch and the logs outlive Ctrl-C: they show how the pods end.
	watchCtx, endWatch := context.WithCancel(context.WithoutCancel(ctx))
	defer endWatch()
	printer := &logview.Printer{Out: a.out, Colored: colored(a.out)}
	follow := &follower{printer: printer, notes: notes, several: len(pods) > 1}
	launcher := &launch.Launcher{
		Runtime: conn.Runtime, Images: conn.Images, Store: a.store(conn), Host: host,
		Watch: launch.NewWatch(watchCtx, conn.Runtime),
		Pull: func(ctx context.Context, image string) (string, error) {
			return a.pull(ctx, conn, image, &o.auth, notes)
		},
	}
	if !o.detach {
		launcher.Started = func(pod *launch.Pod, c *launch.Container) { follow.start(watchCtx, launcher.Watch, pod, c) }
	}
	if err := launcher.Sweep(ctx); err != nil {
		fmt.Fprintf(a.err, "warning: what an earlier command left behind could not be removed: %v\n", err)
	}
	var running []*launch.Pod
	var started []startedPod
	for _, pod := range pods {
		begin := time.Now()
		one, err := a.startPod(ctx, launcher, pod, o)
		if err != nil {
			err = errors.Join(err, a.end(ctx, conn, launcher, running))
			follow.wait()
			return commandCode(err)
		}
		running = append(running, one)
		started = append(started, newStartedPod(one, time.Since(begin)))
		fmt.Fprintf(notes, "pod %s runs%s, started in %v\n", one.FullName(), at(one.IPs),
			time.Since(begin).Round(time.Millisecond))
	}
	if o.detach {
		return a.reportStarted(started)
	}
	code := follow.finish(ctx)
	if ctx.Err() != nil {
		fmt.Fprintln(notes, "stopping; once more ends this command at once")
	}
	if err := a.end(ctx, conn, launcher, running); err != nil {
		return err
	}
	follow.wait()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case code != 0:
		return &streaming.ExitError{Code: int(code)}
	}
	return nil
}

func at(ips []string) string {
	if len(ips) == 0 {
		return ""
	}
	return " at " + strings.Join(ips, ", ")
}

func newStartedPod(pod *launch.Pod, took time.Duration) startedPod {
	s := startedPod{ID: pod.SandboxID, Name: pod.Name, Namespace: pod.Namespace, IPs: pod.IPs,
		Containers: map[string]string{}, Took: took}
	for _, c := range pod.Containers {
		s.Containers[c.Name] = c.ID
	}
	return s
}

func (a *app) reportStarted(started []startedPod) error {
	if a.format.Structured() {
		return table.Document(a.out, a.format, started)
	}
	for _, pod := range started {
		fmt.Fprintln(a.out, pod.ID)
	}
	return nil
}

// startPod starts one pod under a name that no other has.
func (a *app) startPod(ctx context.Context, launcher *launch.Launcher, pod *manifest.Pod,
	o *runOptions) (*launch.Pod, error) {
	existing, err := launcher.Existing(ctx, pod)
	if err != nil {
		return nil, err
	}
	for _, old := range existing {
		if !o.replace {
			return nil, fmt.Errorf("pod %s exists already (%s): remove it with `berth rm -f %s`, or give --replace, "+
				"or another name with --name",
				pod.FullName(), table.ShortID(old.GetId()), lookup.ShortPodName(old))
		}
		if err := launch.StopPod(ctx, launcher.Runtime, old, -1); err != nil {
			return nil, err
		}
		if err := launch.RemovePod(ctx, launcher.Runtime, launcher.Store, old); err != nil {
			return nil, err
		}
	}
	running, err := launcher.Run(ctx, pod)
	var failed *launch.InitError
	if errors.As(err, &failed) && !o.detach {
		// Its output has been shown; its exit code is the command's.
		fmt.Fprintf(a.err, "berth: %v\n", err)
		return nil, &streaming.ExitError{Code: int(failed.Status.GetExitCode())}
	}
	return running, err
}

// end stops and removes pods. A Ctrl-C that is over does not count any more.
func (a *app) end(ctx context.Context, conn *connection.Connection, launcher *launch.Launcher,
	pods []*launch.Pod) error {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	for _, pod := range pods {
		sandbox := &cri.PodSandbox{
			Id:       pod.SandboxID,
			Metadata: &cri.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)},
		}
		grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
		if err := launch.StopPod(ctx, conn.Runtime, sandbox, grace); err != nil {
			errs = append(errs, fmt.Errorf("stop pod %s: %w", pod.FullName(), err))
		}
		if err := launch.RemovePod(ctx, conn.Runtime, launcher.Store, sandbox); err != nil {
			errs = append(errs, fmt.Errorf("remove pod %s: %w", pod.FullName(), err))
		}
	}
	return errors.Join(errs...)
}

// follower shows the logs of containers and notes how they end.
type follower struct {
	printer *logview.Printer
	notes   io.Writer
	several bool // pods: lines bear the pod's name too

	mu      sync.Mutex // guards ends
	ends    []containerEnd
	workers sync.WaitGroup // logs
	waiters sync.WaitGroup // ordinary containers
}

type containerEnd struct {
	name string
	at   int64
	code int32
}

// start follows a container until it has ended and all of its log is shown.
func (f *follower) start(ctx context.Context, watch *launch.Watch, pod *launch.Pod, c *launch.Container) {
	name := c.Name
	if f.several {
		name = pod.Name + "/" + name
	}
	label := f.printer.Name(name)
	ended := make(chan struct{})
	if c.Kind == "" {
		f.waiters.Add(1)
	}
	f.workers.Go(func() {
		defer close(ended)
		if c.Kind == "" {
			defer f.waiters.Done()
		}
		status, err := watch.Exited(ctx, c.ID)
		if err != nil {
			if connection.Code(err) != codes.NotFound && ctx.Err() == nil {
				fmt.Fprintf(f.notes, "container %s: %v\n", name, err)
			}
			return
		}
		if c.Kind != "" {
			return
		}
		f.mu.Lock()
		f.ends = append(f.ends, containerEnd{name, status.GetFinishedAt(), status.GetExitCode()})
		f.mu.Unlock()
		if code := status.GetExitCode(); code != 0 {
			fmt.Fprintf(f.notes, "container %s ended with exit code %d%s\n", name, code, because(status))
		}
	})
	// Opened now: a pod that fails is removed with its logs.
	log, err := crilog.Open(c.LogPath, crilog.Options{Tail: -1, Follow: true, Ended: ended})
	if err != nil {
		fmt.Fprintf(f.notes, "log of %s: %v\n", name, err)
		return
	}
	f.workers.Go(func() {
		defer log.Close()
		if err := log.Run(ctx, func(line *crilog.Line) error {
			return f.printer.Print(label, line)
		}); err != nil && ctx.Err() == nil {
			fmt.Fprintf(f.notes, "log of %s: %v\n", name, err)
		}
	})
}

func because(status *cri.ContainerStatus) string {
	reason, message := status.GetReason(), status.GetMessage()
	if reason == "Error" {
		reason = ""
	}
	switch {
	case reason != "" && message != "":
		return " (" + reason + ": " + message + ")"
	case reason+message != "":
		return " (" + reason + message + ")"
	}
	return ""
}

// finish waits until all ordinary containers have ended or ctx has, and returns the exit code of the first that failed.
func (f *follower) finish(ctx context.Context) int32 {
	all := make(chan struct{})
	go func() {
		f.waiters.Wait()
		close(all)
	}()
	select {
	case <-all:
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sort.Slice(f.ends, func(i, j int) bool { return f.ends[i].at < f.ends[j].at })
	for _, end := range f.ends {
		if end.code != 0 {
			return end.code
		}
	}
	return 0
}

// wait waits for the logs. Containers that are not removed must have ended.
func (f *follower) wait() { f.workers.Wait() }

func colored(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && streaming.IsTerminal(file) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
