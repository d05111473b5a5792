package apparmor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"berth/internal/firstbytes"
)

// Default is a profile of the node that this process loads, for containers that name no other. Others can unload it at
// any time: aa-teardown and aa-remove-unknown do, and on some distributions a restart of apparmor.service. So whoever
// starts a process with it calls Ensure before.
type Default struct {
	name string
	text func() (string, error)
	log  *slog.Logger

	sysfs  string
	parser func() (string, error)

	// loadedAt is the revision of the kernel's policy at which the profile was loaded; 0: none is known.
	loadedAt atomic.Int64
	loading  singleflight.Group
}

// NewDefault returns the profile with this name. text makes its text.
func NewDefault(name string, text func() (string, error), log *slog.Logger) *Default {
	return &Default{name: name, text: text, log: log, sysfs: sysfs, parser: Parser}
}

// Load loads the profile if the kernel does not have it, and tells whether containers can have it. On a host where
// AppArmor is not Usable it does nothing. If there is no program that can load the profile, the log says so, and the
// error is ErrNoParser.
func (d *Default) Load(ctx context.Context) (bool, error) {
	if !usable(d.sysfs) {
		return false, nil
	}
	err := d.ensure(ctx, false)
	if errors.Is(err, ErrNoParser) {
		const event = "containers that name no AppArmor profile get none: there is no program apparmor_parser"
		d.log.Warn(event, "error", err)
	}
	return err == nil, err
}

// Ensure loads the profile again if somebody has unloaded it and a process is about to have it: profile is that of the
// process. While the kernel's policy does not change, this takes one read of a small file.
func (d *Default) Ensure(ctx context.Context, profile string) error {
	if profile != d.name {
		return nil
	}
	return d.ensure(ctx, true)
}

func (d *Default) ensure(ctx context.Context, again bool) error {
	if at := d.revision(); at != 0 && at == d.loadedAt.Load() {
		return nil
	}
	// One for all that wait, so it does not end with the call of one of them.
	done := d.loading.DoChan("", func() (any, error) {
		return nil, d.load(context.WithoutCancel(ctx), again)
	})
	select {
	case result := <-done:
		if result.Err != nil {
			return fmt.Errorf("AppArmor profile %s: %w", d.name, result.Err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("AppArmor profile %s: %w", d.name, ctx.Err())
	}
}

// load loads the profile unless the kernel has it. again says that it was loaded before.
func (d *Default) load(ctx context.Context, again bool) error {
	// The revision is read first: a profile that is unloaded afterwards makes it another one.
	at := d.revision()
	there, err := loaded(d.sysfs, d.name)
	if err != nil {
		return err
	}
	if !there {
		if err := d.parse(ctx); err != nil {
			return fmt.Errorf("load it: %w", err)
		}
		if again {
			d.log.Warn("the default AppArmor profile was unloaded from the kernel: it is loaded again", "profile", d.name)
		}
		return nil // the next call sees the policy's new revision
	}
	d.loadedAt.Store(at)
	return nil
}

// parseWait bounds how long apparmor_parser may take. It takes some 100 ms on a slow machine.
const parseWait = 30 * time.Second

// maxParserOutput is how many bytes of what apparmor_parser says are kept.
const maxParserOutput = 4096

func (d *Default) parse(ctx context.Context) error {
	program, err := d.parser()
	if err != nil {
		return err
	}
	text, err := d.text()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, parseWait)
	defer cancel()
	out := firstbytes.Buffer{Left: maxParserOutput}
	cmd := exec.CommandContext(ctx, program, "-Kr") // without its cache; replace the profile
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(text), &out, &out
	firstbytes.Group(cmd)
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(out.Bytes())))
	}
	return nil
}

// revision is the number that the kernel gives to the present state of its policy, of this process's namespace of
// AppArmor. It grows with each profile that is loaded, replaced or removed. 0: the kernel does not tell.
func (d *Default) revision() int64 {
	// A read of what a descriptor has read already waits for the next change; Go's poller would wait too.
	fd, err := unix.Open(d.sysfs+directory+"/revision", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var text [32]byte
	n, err := unix.Read(fd, text[:])
	if err != nil {
		return 0
	}
	revision, err := strconv.ParseInt(strings.TrimSpace(string(text[:n])), 10, 64)
	if err != nil {
		return 0
	}
	return revision
}
