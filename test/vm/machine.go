package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"berth/test/vm/wire"
)

// virtiofsd is where Debian's qemu-system-common has it.
const virtiofsd = "/usr/lib/qemu/virtiofsd"

// size is what a machine has.
type size struct {
	processors int
	memory     int // MiB
}

// machine is a running guest.
type machine struct {
	dir      string // of sockets and the share; removed with the machine
	console  string // file
	share    *exec.Cmd
	emulator *exec.Cmd
	exited   chan struct{} // closed when the emulator is reaped
	conn     net.Conn
	commands *json.Encoder
	replies  *json.Decoder
}

// boot starts a guest and waits until its agent answers, for at most limit. The directories appear in the guest
// at the same paths. The console's output goes to the file console.
func boot(ctx context.Context, i *image, agent string, dirs []string, s size, console string,
	limit time.Duration) (*machine, error) {
	dir, err := os.MkdirTemp("", "berth-vm-")
	if err != nil {
		return nil, err
	}
	m := &machine{dir: dir, console: console, exited: make(chan struct{})}
	start := time.Now()
	for _, step := range []func() error{
		func() error { return m.startShare(ctx, agent, dirs) },
		func() error { return m.startEmulator(i, s) },
		func() error { return m.waitReady(ctx, start.Add(limit)) },
	} {
		if err := step(); err != nil {
			return nil, errors.Join(err, m.stop())
		}
	}
	return m, nil
}

// startShare serves a directory with the agent and, bound below it in a mount namespace of its own, the directories.
func (m *machine) startShare(ctx context.Context, agent string, dirs []string) error {
	root := filepath.Join(m.dir, "share")
	var script strings.Builder
	for _, dir := range dirs {
		at := filepath.Join(root, "tree", dir)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		fmt.Fprintf(&script, "mount --bind %[1]s %[2]s && mount -o remount,bind,ro %[2]s || exit\n", quote(dir), quote(at))
	}
	list, err := json.Marshal(dirs)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, wire.DirsFile), list, 0o644); err != nil {
		return err
	}
	if err := command(ctx, "cp", agent, filepath.Join(root, "agent")); err != nil {
		return err
	}
	// Submounts are not announced: the guest sees one file system.
	fmt.Fprintf(&script, "exec %s --socket-path=%s --rlimit-nofile=0 -o source=%s -o sandbox=chroot -o cache=always\n",
		virtiofsd, quote(m.socket("share")), quote(root))
	log, err := os.Create(filepath.Join(m.dir, "share.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	m.share = exec.Command("sh", "-c", script.String())
	m.share.Stdout, m.share.Stderr = log, log
	m.share.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS,
		Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := m.share.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(m.socket("share")); err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			said, _ := os.ReadFile(log.Name())
			return fmt.Errorf("virtiofsd does not listen: %s", said)
		}
	}
}

func (m *machine) socket(name string) string { return filepath.Join(m.dir, name+".sock") }

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func (m *machine) startEmulator(i *image, s size) error {
	// The guest writes to a snapshot, a file of the emulator's own that has no name.
	args := append(slices.Clone(i.architecture.machine),
		"-accel", "tcg,thread=multi", "-no-reboot", "-nodefaults", "-display", "none",
		"-smp", fmt.Sprint(s.processors), "-m", fmt.Sprint(s.memory),
		"-object", fmt.Sprintf("memory-backend-memfd,id=memory,size=%dM,share=on", s.memory), "-numa", "node,memdev=memory",
		"-kernel", i.kernel, "-initrd", i.initrd,
		"-append",
		"console="+i.architecture.console+" root=/dev/vda rw rootflags=prjquota,noinit_itable net.ifnames=0 quiet "+
			"systemd.log_color=0 systemd.show_status=1 panic=-1 "+i.parameters,
		"-drive", "file="+i.root+",format=raw,if=virtio,snapshot=on,cache=unsafe",
		"-chardev", "socket,id=share,path="+m.socket("share"), "-device", "vhost-user-fs-pci,chardev=share,tag="+wire.Tag,
		"-chardev", "socket,id=port,server=on,wait=off,path="+m.socket("port"), "-device", "virtio-serial-pci",
		"-device", "virtserialport,chardev=port,name="+wire.Port,
		"-netdev", "user,id=net,restrict=on", "-device", "virtio-net-pci,netdev=net,romfile=",
		"-device", "virtio-rng-pci",
		"-chardev", "file,id=console,path="+m.console, "-serial", "chardev:console",
	)
	log, err := os.Create(filepath.Join(m.dir, "emulator.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	m.emulator = exec.Command(i.architecture.emulator, args...)
	m.emulator.Stdout, m.emulator.Stderr = log, log
	m.emulator.Env = append(os.Environ(), "TMPDIR="+m.dir)
	m.emulator.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := m.emulator.Start(); err != nil {
		return err
	}
	go func() {
		_ = m.emulator.Wait()
		close(m.exited)
	}()
	return nil
}

// waitReady connects to the agent and waits for its first word.
func (m *machine) waitReady(ctx context.Context, deadline time.Time) error {
	for {
		conn, err := net.Dial("unix", m.socket("port"))
		if err == nil {
			m.conn, m.commands, m.replies = conn, json.NewEncoder(conn), json.NewDecoder(conn)
			break
		}
		select {
		case <-m.exited:
			return m.say("the emulator ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return m.say("the emulator does not listen")
		}
	}
	reply, err := m.receive(ctx, deadline)
	if err != nil {
		return err
	}
	if !reply.Ready {
		return m.say("the agent cannot lay out the share: " + reply.Error)
	}
	return nil
}

// receive waits for the next reply.
func (m *machine) receive(ctx context.Context, deadline time.Time) (wire.Reply, error) {
	stop := context.AfterFunc(ctx, func() { _ = m.conn.SetReadDeadline(time.Now()) })
	defer stop()
	if err := m.conn.SetReadDeadline(deadline); err != nil {
		return wire.Reply{}, err
	}
	var reply wire.Reply
	err := m.replies.Decode(&reply)
	switch {
	case err == nil:
		return reply, nil
	case ctx.Err() != nil:
		return reply, ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return reply, m.say(fmt.Sprintf("no word from the guest until %s", deadline.Format(time.TimeOnly)))
	}
	return reply, m.say(fmt.Sprintf("the guest is gone: %v", err))
}

// say is an error with what emulator and console said last.
func (m *machine) say(what string) error {
	return fmt.Errorf("%s\nthe emulator said: %s\nthe console ended with:\n%s", what,
		tail(filepath.Join(m.dir, "emulator.log"), 2000), tail(m.console, 4000))
}

func tail(file string, size int) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-size):])
}

// run runs a command in the guest and hands its output on as it comes. The error says why the command is not known
// to have ended well; a code other than 0 is none.
func (m *machine) run(ctx context.Context, c wire.Command, out io.Writer) (code int, err error) {
	if err := m.commands.Encode(c); err != nil {
		return -1, m.say(fmt.Sprintf("the guest is gone: %v", err))
	}
	// The agent keeps the limit; a guest that is a minute late hangs.
	deadline := time.Now().Add(c.Limit + time.Minute)
	for {
		reply, err := m.receive(ctx, deadline)
		if err != nil {
			return -1, err
		}
		if _, err := out.Write(reply.Output); err != nil {
			return -1, err
		}
		if reply.Done {
			if reply.Error != "" {
				return reply.Code, errors.New(reply.Error)
			}
			return reply.Code, nil
		}
	}
}

// stop ends the guest as a loss of power would, and removes what it was run with.
func (m *machine) stop() error {
	if m.conn != nil {
		_ = m.conn.Close()
	}
	if m.emulator != nil && m.emulator.Process != nil {
		_ = m.emulator.Process.Kill()
		<-m.exited
	}
	if m.share != nil && m.share.Process != nil {
		_ = m.share.Process.Kill()
		_ = m.share.Wait()
	}
	return os.RemoveAll(m.dir)
}
