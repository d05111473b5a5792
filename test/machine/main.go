package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/node"
)

func main() {
	wait := flag.Duration("wait", time.Minute, "how long a difference may take to go")
	verbose := flag.Bool("v", false, "print what others have made, and what is allowed, too")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: machine [-wait 1m] [-v] command [argument...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := node.PutBack(); err != nil {
		fmt.Fprintln(os.Stderr, "machine: put back what killed tests have changed:", err)
		os.Exit(1)
	}
	r := &run{wait: *wait, pause: time.Second, verbose: *verbose, out: os.Stderr}
	code, err := r.run(flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "machine:", err)
	}
	os.Exit(code)
}

// run is one run of a command.
type run struct {
	wait    time.Duration
	pause   time.Duration // between two looks at the machine
	verbose bool
	out     io.Writer

	id, tmp string
	before  snapshot
	people  *population     // who was there at the beginning
	noise   map[string]bool // what changed by itself, as kind and name
}

// run returns the command's exit code, or 1 if it has left the machine changed.
func (r *run) run(command []string) (code int, err error) {
	if err := r.begin(); err != nil {
		return 1, err
	}
	code, err = r.execute(command)
	if err != nil {
		return 1, err
	}
	left, err := r.compare()
	if err == nil && len(left) == 0 {
		return code, nil
	}
	fmt.Fprintf(r.out, "the machine is not what it was before %s:\n", command[0])
	for _, line := range left {
		fmt.Fprintln(r.out, "   ", line)
	}
	_ = os.Remove(r.tmp) // what is in it stays, to be looked at
	if len(r.people.theirs) > 0 {
		fmt.Fprintln(r.out,
			"Others test on this machine: what they did meanwhile and have left may be among these. A second run shows again "+
				"what the command leaves.")
	}
	if code == 0 {
		code = 1
	}
	return code, err
}

func (r *run) begin() error {
	var id [4]byte
	if _, err := rand.Read(id[:]); err != nil {
		return err
	}
	r.id = hex.EncodeToString(id[:])
	// A short path: sockets are below it. Users without rights come by on their way to root file systems.
	r.tmp = filepath.Join(os.TempDir(), "m"+r.id[:4])
	if err := os.Mkdir(r.tmp, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(r.tmp, os.ModeSticky|0o777); err != nil {
		return err
	}
	first, err := take()
	if err != nil {
		return err
	}
	time.Sleep(r.pause)
	if r.before, err = take(); err != nil {
		return err
	}
	r.noise = map[string]bool{}
	for _, d := range differences(first, r.before) {
		r.noise[d.kind+" "+d.name] = true
	}
	r.people, err = populate(r.id, r.tmp)
	return err
}

func (r *run) execute(command []string) (code int, err error) {
	// A terminal's interrupt goes to the command as well, which ends by it; what it has left is of interest then, too.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, unix.SIGTERM)
	defer signal.Stop(interrupts)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "TMPDIR="+r.tmp, mark+"="+r.id)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case s := <-interrupts:
			_ = cmd.Process.Signal(s)
		case err := <-done:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return max(exit.ExitCode(), 1), nil
			}
			return 0, err
		}
	}
}

// compare looks at the machine until it is what it was, or the time is over. What is not there each time is of somebody
// who is at work, or is on its way out.
func (r *run) compare() ([]string, error) {
	stayed, err := r.left()
	for deadline := time.Now().Add(r.wait); err == nil && len(stayed) > 0 && time.Now().Before(deadline); {
		time.Sleep(r.pause)
		var now []string
		now, err = r.left()
		stayed = slices.DeleteFunc(stayed, func(line string) bool { return !slices.Contains(now, line) })
	}
	if err != nil || len(stayed) > 0 {
		return stayed, err
	}
	return nil, os.RemoveAll(r.tmp)
}

// left are the differences that the command has made.
func (r *run) left() ([]string, error) {
	people, err := populate(r.id, r.tmp)
	if err != nil {
		return nil, err
	}
	now, err := take()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range people.ours {
		out = append(out, "process of the command: "+p.String())
	}
	entries, err := os.ReadDir(r.tmp)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		out = append(out, "file "+filepath.Join(r.tmp, entry.Name())+" was not there")
	}
	note := func(d difference, why string) {
		if r.verbose {
			fmt.Fprintf(r.out, "%s (%s)\n", d, why)
		}
	}
	for _, d := range differences(r.before, now) {
		reason := why(d)
		switch {
		case r.noise[d.kind+" "+d.name] || d.name == r.tmp || strings.HasPrefix(d.name, r.tmp+"/") && d.kind == "file":
		case reason != "":
			note(d, reason)
		case people.made(d):
			note(d, "somebody else's")
		case r.people.made(d):
			note(d, "somebody else's who was there at the beginning")
		default:
			out = append(out, firstLine(d.String()))
		}
	}
	return out, nil
}
