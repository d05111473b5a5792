package namespace

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/asroot"
	"berth/internal/throwaway"
)

// Many namespaces at a time: each gets its own value, and a procfs that is given up is closed. Without release none is.
func TestSysctlsAreWrittenInTheNamespaceOfTheThread(t *testing.T) {
	asroot.Need(t, "namespaces")
	const name = "net/ipv4/ip_unprivileged_port_start"
	before, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 3*maxTaken + 1 {
		all.Go(func() {
			want := fmt.Sprint(i + 1)
			err := throwaway.Thread(func() error {
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					return err
				}
				if err := WriteSysctl(name, want); err != nil {
					return err
				}
				got, err := os.ReadFile("/proc/sys/" + name)
				if err == nil && strings.TrimSpace(string(got)) != want {
					err = fmt.Errorf("the sysctl is %q, want %s", got, want)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if after, err := os.ReadFile("/proc/sys/" + name); err != nil || string(after) != string(before) {
		t.Errorf("this namespace has %q, %v; it had %q", after, err, before)
	}
	if open := openProcfs(t); open != 1 {
		t.Errorf("%d procfs of its own are open after all has been written, want 1", open)
	}
}

// openProcfs is how many files of this process are the top of a procfs.
func openProcfs(t *testing.T) (count int) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		var fs unix.Statfs_t
		path := "/proc/self/fd/" + fd.Name()
		target, err := os.Readlink(path)
		if err == nil && target == "/" && unix.Statfs(path, &fs) == nil && fs.Type == unix.PROC_SUPER_MAGIC {
			count++
		}
	}
	return count
}

func TestASysctlThatIsNotThere(t *testing.T) {
	err := WriteSysctl("net/ipv4/no_such", "1")
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(fmt.Sprint(err), "/proc/sys/net/ipv4/no_such") {
		t.Errorf("a sysctl that is not there: %v", err)
	}
}

// Without the right to mount, and with an old kernel, /proc has to do.
func TestSysctlsWithoutAProcfsOfOnesOwn(t *testing.T) {
	asroot.Need(t, "namespaces")
	err := throwaway.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWUTS | unix.CLONE_NEWNET); err != nil {
			return err
		}
		f, err := (&instance{}).open("net/ipv4/ip_unprivileged_port_start")
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteString("81")
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
