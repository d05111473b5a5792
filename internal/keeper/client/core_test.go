package client_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	keeper "berth/internal/keeper/client"
)

// TestAKeeperLeavesNoCoreFile, however large core files may be, while its containers keep their limit. The kernel gives
// the files below /proc of a process whose memory is not to be written to root alone, user and group. Seen to fail
// without coredump.Forbid.
func TestAKeeperLeavesNoCoreFile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const group = 12345
	for _, tt := range []struct {
		env   string
		group uint32
	}{{"A=b", 0}, {"GOTRACEBACK=crash", group}} {
		dir := filepath.Join(t.TempDir(), "keeper")
		cmd := exec.Command(binary, "--dir", dir)
		cmd.Env = append(os.Environ(), tt.env)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Gid: group}}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		n := &node{TB: t, program: binary, dir: dir, root: rootfs(t)}
		n.until("it answers", func() bool {
			client, err := keeper.Connect(n.ctx(), keeper.Config{Dir: dir, NoEscrow: true})
			if err != nil {
				return false
			}
			client.Close()
			return true
		})
		info, err := os.Stat("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/environ")
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Sys().(*syscall.Stat_t).Gid; got != tt.group {
			t.Errorf("with %s its files below /proc have group %d, not %d", tt.env, got, tt.group)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
}

// TestAContainersLimitOfCoreFilesIsThatOfTheKeeper, and one that it asks for is its own: for init processes and execs.
func TestAContainersLimitOfCoreFilesIsThatOfTheKeeper(t *testing.T) {
	n := start(t)
	var own unix.Rlimit
	if err := unix.Prlimit(n.pid(), unix.RLIMIT_CORE, nil, &own); err != nil {
		t.Fatal(err)
	}
	want := "unlimited"
	if own.Cur != unix.RLIM_INFINITY {
		want = strconv.FormatUint(own.Cur, 10)
	}
	const script = "while read a b c d e f; do case $a$b$c in Maxcorefile) echo $e;; esac; done </proc/self/limits"
	for _, choice := range []keeper.SetupChoice{keeper.SetupStage, keeper.SetupLibcontainer} {
		id := string(choice)
		req := n.request(id, "sh", "-c", script+"; exec sleep 1000")
		req.Setup = choice
		n.run(req)
		n.until("it has said", func() bool { return n.output("stdout", n.logPath(id)) != "" })
		first := strings.TrimSpace(n.output("stdout", n.logPath(id)))
		further, _ := n.exec(id, 0, "sh", "-c", script)
		if first != want || strings.TrimSpace(further) != want {
			t.Errorf("%s: %q and %q, and the keeper's limit is %s", choice, first, further, want)
		}
	}
}
