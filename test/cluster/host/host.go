package host

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth/test/node"
)

// Options say what a host is.
type Options struct {
	// Name is that of the host's cgroups: unique on the machine.
	Name string
	// Hostname is what programs in the host take for its name. Empty: Name.
	Hostname string
	// Dir is the host's directory on the machine, which exists and survives the host.
	Dir string
	// Binds are directories of the machine that the host sees elsewhere, or that have to be the same file system: a
	// directory that an overlay is to be made in cannot lie in the host's root, which is an overlay itself.
	Binds []Bind
	// Files are files of the host, by path.
	Files map[string]string
	// Sysctls are those of the whole machine that programs in the host want to set, with the values that they find there.
	Sysctls map[string]string
}

// Bind is a directory of the machine, and where the host has it.
type Bind struct{ From, At string }

// Host is a running host. Its methods are for any goroutine.
type Host struct {
	Name    string
	PID     int // of the init, as the machine sees it
	dir     string
	init    *exec.Cmd
	hold    io.Closer // the init ends when this is closed
	cgroups []string
	exited  chan struct{}
}

// Start makes a host.
func Start(ctx context.Context, o Options) (h *Host, err error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	scratch := filepath.Join(o.Dir, "scratch")
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		return nil, err
	}
	for _, bind := range o.Binds {
		if err := os.MkdirAll(bind.From, 0o755); err != nil {
			return nil, err
		}
	}
	h = &Host{Name: o.Name, dir: o.Dir, exited: make(chan struct{})}
	if h.cgroups, err = makeCgroups(all, o.Name); err != nil {
		return nil, err
	}
	hostname := o.Hostname
	if hostname == "" {
		hostname = o.Name
	}
	text, err := json.Marshal(plan{
		Name: hostname, Scratch: scratch, Binds: o.Binds, Cgroups: all, Files: o.Files, Sysctls: o.Sysctls,
	})
	if err != nil {
		return nil, errors.Join(err, removeCgroups(h.cgroups))
	}
	h.init = exec.Command("/proc/self/exe")
	h.init.Env = append(os.Environ(), envInit+"="+string(text))
	h.init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET |
			syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Setpgid: true, // a terminal's interrupt is for the suite, which ends its hosts in order
	}
	hold, err := h.init.StdinPipe()
	if err != nil {
		return nil, errors.Join(err, removeCgroups(h.cgroups))
	}
	h.hold = hold
	out, err := h.init.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, removeCgroups(h.cgroups))
	}
	if err := h.init.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start a host: %w", err), removeCgroups(h.cgroups))
	}
	h.PID = h.init.Process.Pid
	first := make(chan string, 1)
	go func() {
		lines := bufio.NewReader(out)
		said, _ := lines.ReadString('\n')
		first <- said
		_, _ = io.Copy(io.Discard, lines)
		_ = h.init.Wait()
		close(h.exited)
	}()
	for _, dir := range h.cgroups {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(h.PID)), 0); err != nil {
			return nil, errors.Join(err, h.End())
		}
	}
	if _, err := io.WriteString(hold, "go\n"); err != nil {
		return nil, errors.Join(err, h.End())
	}
	select {
	case said := <-first:
		if strings.TrimSpace(said) != ready {
			return nil, errors.Join(fmt.Errorf("host %s: %s", o.Name, strings.TrimSpace(said)), h.End())
		}
		return h, nil
	case <-time.After(node.Patience(30 * time.Second)):
		return nil, errors.Join(fmt.Errorf("host %s does not come up", o.Name), h.End())
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), h.End())
	}
}

// makeCgroups makes a cgroup in each hierarchy, or none.
func makeCgroups(hierarchies []hierarchy, name string) (dirs []string, err error) {
	for _, h := range hierarchies {
		dir, err := makeCgroup(h, name)
		if err != nil {
			return nil, errors.Join(err, removeCgroups(dirs))
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// End ends every process of the host without a word, as when the power fails, and with them all of its namespaces. Its
// directory stays.
func (h *Host) End() error {
	_ = h.hold.Close()
	_ = h.init.Process.Kill()
	<-h.exited
	return removeCgroups(h.cgroups)
}

// enterScript joins the host's cgroups, then its namespaces, and becomes the command.
const enterScript = `
cgroups=$1; pid=$2; shift 2
for dir in $cgroups; do echo $$ > "$dir/cgroup.procs"; done
exec nsenter --target "$pid" --mount --uts --ipc --net --pid --cgroup -- "$@"
`

// Command is a command in the host.
func (h *Host) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", append([]string{
		"-ec", enterScript, "sh", strings.Join(h.cgroups, " "), strconv.Itoa(h.PID),
	}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// Run runs a command in the host and returns what it prints.
func (h *Host) Run(ctx context.Context, args ...string) (string, error) {
	cmd := h.Command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		said := bytes.TrimSpace(stderr.Bytes())
		return stdout.String(), fmt.Errorf("%s: %s: %w: %s", h.Name, strings.Join(args, " "), err, said)
	}
	return stdout.String(), nil
}

// Service is a program that runs on in a host.
type Service struct {
	Name   string
	Log    string // the path of what it prints
	host   *Host
	cmd    *exec.Cmd
	exited chan struct{}
}

// Service starts a program. What it prints is added to a file in the host's directory.
func (h *Host) Service(name string, args ...string) (*Service, error) {
	s := &Service{Name: name, Log: filepath.Join(h.dir, name+".log"), host: h, exited: make(chan struct{})}
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.cmd = h.Command(context.Background(), append([]string{
		"sh", "-ec", `echo $$ > "/run/$1.pid"; shift; exec "$@"`, "sh", name,
	}, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s on %s: %w", name, h.Name, err)
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.exited)
	}()
	return s, nil
}

// Stop sends the program a signal, such as TERM, and waits until it has ended.
func (s *Service) Stop(ctx context.Context, signal string) error {
	if !s.Running() {
		return nil
	}
	_, err := s.host.Run(ctx, "sh", "-c", fmt.Sprintf("kill -%s $(cat /run/%s.pid)", signal, s.Name))
	select {
	case <-s.exited:
		return nil
	case <-time.After(node.Patience(30 * time.Second)):
		return errors.Join(err, fmt.Errorf("%s of %s outlives SIG%s: %s", s.Name, s.host.Name, signal, s.Tail()))
	case <-ctx.Done():
		return errors.Join(err, ctx.Err())
	}
}

// Running says whether the program runs.
func (s *Service) Running() bool {
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// Tail is the end of what the program has printed.
func (s *Service) Tail() string {
	data, err := os.ReadFile(s.Log)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-4096):])
}
