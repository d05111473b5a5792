// Command demo runs Berth's main job before the reader's eyes, on a private daemon and keeper under a temporary
// directory and without a network: an image is pulled from a registry on loopback, a pod of it runs, is reached,
// watched and executed in, survives a kill of the daemon, is stopped and removed, and what is left on the machine
// is counted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"berth/internal/registrytest"
	"berth/test/node"
)

func main() {
	binaries := flag.String("bin", "bin", "directory of berthd, berth-keeper, berth-unpack and berth")
	web := flag.String("web", "", "the demo's static web server, built")
	manifest := flag.String("manifest", "test/demo/hello.yaml", "the pod to run")
	flag.Parse()
	// A reader of the output that goes away (`| head`) must not end this before it has cleaned up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	d := &demo{binaries: *binaries, web: *web, manifest: *manifest, began: time.Now(), color: isTerminal(os.Stdout)}
	if err := d.run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "\nThe demo failed: %v\n", err)
		os.Exit(1)
	}
}

// demo is one run of it.
type demo struct {
	binaries string
	web      string
	manifest string
	began    time.Time
	color    bool

	registry *registrytest.Registry
	node     *node.Node
	dataDir  string // of the command line
	podIP    string
	hostPort int
	steps    int
}

func (d *demo) run(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("a container runtime needs root: sudo make demo")
	}
	if d.binaries, err = filepath.Abs(d.binaries); err != nil {
		return err
	}
	before, err := survey()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.cleanUp()) }()
	for _, step := range []struct {
		title string
		do    func(context.Context) error
	}{
		{"Build an image and serve it from a registry on loopback", d.serveImage},
		{"Start a private berthd; it starts its keeper", d.startNode},
		{"Look at this machine, and at what answers", d.lookAround},
		{"Pull the image", d.pull},
		{"Run the pod of " + d.manifest, d.runPod},
		{"List what runs", d.list},
		{"Reach it at the pod's address and at the host's port", d.reach},
		{"Follow a container's log", d.followLog},
		{"Execute a command in it", d.execute},
		{"See what it uses", d.stats},
		{"Forward a port of this machine to it", d.forward},
		{"Kill berthd with -9: the pod goes on answering", d.killDaemon},
		{"Start berthd again: it finds the pod as it was", d.restartDaemon},
		{"Stop and remove everything", d.removeAll},
		{"Stop berthd and the keeper", d.stopNode},
		{"Count what is left on this machine", func(context.Context) error { return d.count(before) }},
	} {
		if err := d.step(ctx, step.title, step.do); err != nil {
			return fmt.Errorf("step %d (%s): %w", d.steps, step.title, err)
		}
	}
	fmt.Printf("\n%s in %v.\n", d.bold("All of it worked"), time.Since(d.began).Round(10*time.Millisecond))
	return nil
}

// cleanUp removes by force what a failed run has left. After a good one there is nothing.
func (d *demo) cleanUp() error {
	var errs []error
	if d.node != nil {
		fmt.Fprintf(os.Stderr, "\nThe end of what berthd said:\n%s\n", d.node.LogTail())
		errs = append(errs, d.node.Stop())
	}
	if d.registry != nil {
		errs = append(errs, d.registry.Close())
	}
	return errors.Join(errs...)
}

// step announces a step, does it and says how long it took.
func (d *demo) step(ctx context.Context, title string, do func(context.Context) error) error {
	d.steps++
	fmt.Printf("\n%s\n", d.bold(fmt.Sprintf("%d. %s", d.steps, title)))
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	if err := do(ctx); err != nil {
		return err
	}
	fmt.Printf("   %s\n", d.dim("took "+rounded(time.Since(begin))))
	return nil
}

func rounded(took time.Duration) string {
	if took < 10*time.Millisecond {
		return took.Round(10 * time.Microsecond).String()
	}
	return took.Round(time.Millisecond).String()
}

func (d *demo) bold(text string) string { return d.tint("1", text) }
func (d *demo) dim(text string) string  { return d.tint("2", text) }

func (d *demo) tint(code, text string) string {
	if !d.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// say prints text as part of a step, indented.
func say(text string) {
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		fmt.Printf("   %s\n", strings.TrimRight(line, "\n"))
	}
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""
}
