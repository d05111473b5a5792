package ocispec

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func (b *builder) process() error {
	p := b.spec.Process
	p.Terminal = b.config.TTY
	p.NoNewPrivileges = b.security.NoNewPrivs
	if p.Args = b.args(); len(p.Args) == 0 {
		return invalid("command: neither the image nor the container names one")
	}
	if p.Args[0] == "" {
		return invalid("command: the program's name is empty")
	}
	for _, arg := range p.Args {
		if strings.ContainsRune(arg, 0) {
			return invalid("command: %q holds a NUL byte", arg)
		}
	}
	p.Cwd = "/"
	if dir := cmpOr(b.config.WorkingDir, b.in.Image.WorkingDir); dir != "" {
		if strings.ContainsRune(dir, 0) {
			return invalid("working directory: %q holds a NUL byte", dir)
		}
		p.Cwd = path.Join("/", dir)
	}
	if err := b.rlimits(); err != nil {
		return err
	}
	return b.env()
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// args: a command replaces the image's entrypoint and its arguments; arguments alone replace the image's arguments. An
// entrypoint of one empty word is none: that is how a Dockerfile undoes the entrypoint of its base.
func (b *builder) args() []string {
	command, args := b.config.Command, b.config.Args
	if len(command) == 0 {
		if e := b.in.Image.Entrypoint; len(e) != 1 || e[0] != "" {
			command = e
		}
		if len(args) == 0 {
			args = b.in.Image.Cmd
		}
	}
	return slices.Concat(command, args)
}

func (b *builder) env() error {
	env := variables{list: environment{defaultPath}, at: map[string]int{"PATH": 0}}
	if b.config.TTY {
		env.set("TERM", "xterm")
	}
	hostname, err := b.hostname()
	if err != nil {
		return err
	}
	env.set("HOSTNAME", hostname)
	for _, v := range b.in.Handler.Env {
		env.set(v.Key, v.Value)
	}
	for _, entry := range b.in.Image.Env {
		// Images hold odd entries that other builders let pass: one without a "=" is no variable, and is left out.
		if key, value, ok := strings.Cut(entry, "="); ok && key != "" && !strings.ContainsRune(entry, 0) {
			env.set(key, value)
		}
	}
	for _, v := range b.config.Env {
		if v.Key == "" || strings.ContainsAny(v.Key, "=\x00") {
			return invalid("environment: %q is not a variable's name", v.Key)
		}
		if strings.ContainsRune(v.Value, 0) {
			return invalid("environment: the value of %s holds a NUL byte", v.Key)
		}
		env.set(v.Key, v.Value)
	}
	b.spec.Process.Env = env.list
	return nil
}

// variables puts an environment together. An image may have any number of variables, so none is searched for.
type variables struct {
	list environment
	at   map[string]int // by key, where in list it is
}

func (v *variables) set(key, value string) {
	if i, ok := v.at[key]; ok {
		v.list[i] = key + "=" + value
		return
	}
	v.at[key] = len(v.list)
	v.list = append(v.list, key+"="+value)
}

// environment is KEY=value strings, each key once, in the order in which the keys came first.
type environment []string

func (e *environment) set(key, value string) {
	for i, entry := range *e {
		if strings.HasPrefix(entry, key) && len(entry) > len(key) && entry[len(key)] == '=' {
			(*e)[i] = key + "=" + value
			return
		}
	}
	*e = append(*e, key+"="+value)
}

func (e environment) has(key string) bool {
	return slices.ContainsFunc(e, func(entry string) bool { return strings.HasPrefix(entry, key+"=") })
}

// hostname is the host name of the container. That of the node can change while berthd runs.
func (b *builder) hostname() (string, error) {
	if b.in.Namespaces.UTS == "" || b.in.Sandbox.Hostname == "" {
		return os.Hostname()
	}
	return b.in.Sandbox.Hostname, nil
}

var rlimits = map[string]int{
	"RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_CPU": unix.RLIMIT_CPU,
	"RLIMIT_DATA": unix.RLIMIT_DATA, "RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_LOCKS": unix.RLIMIT_LOCKS,
	"RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK, "RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE,
	"RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_RSS": unix.RLIMIT_RSS,
	"RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO, "RLIMIT_RTTIME": unix.RLIMIT_RTTIME,
	"RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING, "RLIMIT_STACK": unix.RLIMIT_STACK,
}

// Exec is a further process in the container of a spec: as its first one, but for what it runs and its terminal.
func Exec(spec *specs.Spec, cmd []string, tty bool) *specs.Process {
	p := *spec.Process
	p.Args = slices.Clone(cmd)
	p.Terminal = tty
	p.ConsoleSize = nil
	env := environment(slices.Clone(p.Env))
	if tty && !env.has("TERM") {
		env.set("TERM", "xterm")
	}
	p.Env = env
	return &p
}

// stopSignal is the client's, else the image's, else SIGTERM.
func (b *builder) stopSignal() syscall.Signal {
	if b.config.StopSignal != 0 {
		return b.config.StopSignal
	}
	if b.in.Image.StopSignal == "" {
		return unix.SIGTERM
	}
	sig, ok := ParseSignal(b.in.Image.StopSignal)
	if !ok {
		b.warn("the image's stop signal %q is not a signal; SIGTERM is used", b.in.Image.StopSignal)
		return unix.SIGTERM
	}
	return sig
}

// Real-time signals as users count them: libc keeps the first two of the kernel's for itself.
const (
	sigRTMin = 34
	sigRTMax = 64
)

// ParseSignal reads a signal as images have it: TERM, SIGTERM, 15, SIGRTMIN+3, RTMAX-1.
func ParseSignal(text string) (syscall.Signal, bool) {
	if n, err := strconv.Atoi(text); err == nil {
		return syscall.Signal(n), n > 0 && n <= sigRTMax
	}
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(text), "SIG")
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, true
	}
	base := 0
	if rest, ok := strings.CutPrefix(name, "SIGRTMIN"); ok {
		base, name = sigRTMin, rest
	} else if rest, ok := strings.CutPrefix(name, "SIGRTMAX"); ok {
		base, name = sigRTMax, rest
	} else {
		return 0, false
	}
	if name == "" {
		return syscall.Signal(base), true
	}
	offset, err := strconv.Atoi(name)
	if sig := base + offset; err == nil && sig >= sigRTMin && sig <= sigRTMax {
		return syscall.Signal(sig), true
	}
	return 0, false
}
