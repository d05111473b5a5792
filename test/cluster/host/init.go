package host

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// envInit is set in the process that becomes the init of a host. Its value is the host's plan.
const envInit = "BERTH_HOST_INIT"

// plan is what an init makes of its namespaces.
type plan struct {
	Name    string
	Scratch string // a directory for the tmpfs that has what the host writes to its root
	Binds   []Bind
	Cgroups []hierarchy
	Files   map[string]string // path in the host -> content
	Sysctls map[string]string // path below /proc/sys -> the value that programs find there and change for nobody
}

// ready is what an init prints once the host is made.
const ready = "ready"

// A process that a host starts is the same program again. It never gets as far as main: an init function runs on the
// main thread, whose namespaces are those that /proc shows of the process.
func init() {
	text := os.Getenv(envInit)
	if text == "" {
		return
	}
	runtime.LockOSThread()
	fmt.Println(initialize(text)) // it returns only with an error
	os.Exit(1)
}

func initialize(text string) error {
	var p plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	if err := os.Unsetenv(envInit); err != nil {
		return err
	}
	// The parent puts this process into the host's cgroups, which are then the roots of its cgroup namespace.
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("unshare the cgroup namespace: %w", err)
	}
	if err := p.makeRoot(); err != nil {
		return err
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	fmt.Println(ready)
	over := make(chan struct{})
	go func() { // the parent has ended, or wants the host to
		_, _ = io.Copy(io.Discard, in)
		close(over)
	}()
	for {
		select {
		case <-over:
			os.Exit(0)
		case <-children:
			for {
				pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
				if err == unix.EINTR {
					continue
				}
				if err != nil || pid <= 0 {
					break
				}
			}
		}
	}
}

// rootScript makes the root file system beside the machine's and moves into it. Its arguments: the scratch directory,
// then a file with further commands, which is sourced before the old root goes.
const rootScript = `
scratch=$1; name=$2; rest=$3
mount --make-rprivate /
mount -t tmpfs -o mode=755 host "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
root=$scratch/root
mount -t overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" host "$root"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t sysfs -o nosuid,nodev,noexec sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=755 run "$root/run"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
mount -t tmpfs -o mode=755 cgroup "$root/sys/fs/cgroup"
eval "$rest"
hostname "$name"
cd "$root"
mkdir .old
pivot_root . .old
cd /
umount -l /.old
rmdir /.old
mount --make-rshared /
ip link set lo up
`

func (p plan) makeRoot() error {
	var b strings.Builder
	root := filepath.Join(p.Scratch, "root")
	for _, h := range p.Cgroups {
		at := filepath.Join(root, "sys/fs/cgroup", h.Name)
		fmt.Fprintf(&b, "mkdir -p %q\nmount -t %s -o nosuid,nodev,noexec%s cgroup %q\n", at, h.Type, h.options(), at)
		for _, link := range h.Links {
			fmt.Fprintf(&b, "ln -s %q %q\n", h.Name, filepath.Join(root, "sys/fs/cgroup", link))
		}
	}
	for _, bind := range p.Binds {
		at := filepath.Join(root, bind.At)
		fmt.Fprintf(&b, "mkdir -p %q\nmount --bind %q %q\n", at, bind.From, at)
	}
	script := exec.Command("sh", "-ec", rootScript, "sh", p.Scratch, p.Name, b.String()+p.filesScript(root))
	if out, err := script.CombinedOutput(); err != nil {
		return fmt.Errorf("make the root of %s: %w: %s", p.Name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// filesScript writes the host's files, and lays others over sysctls that belong to the whole machine.
func (p plan) filesScript(root string) string {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	var b strings.Builder
	write := func(at, content string) {
		fmt.Fprintf(&b, "mkdir -p %s\nrm -f %s\nprintf %%s %s > %[2]s\n", quote(filepath.Dir(at)), quote(at), quote(content))
	}
	for path, content := range p.Files {
		write(filepath.Join(root, path), content)
	}
	for path, value := range p.Sysctls {
		at := filepath.Join(p.Scratch, "sysctls", path)
		write(at, value+"\n")
		over := filepath.Join(root, "proc/sys", path)
		fmt.Fprintf(&b, "if [ -e %s ]; then mount --bind %s %s; fi\n", quote(over), quote(at), quote(over))
	}
	return b.String()
}
