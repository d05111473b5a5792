package life

import (
	"fmt"
	"hash/fnv"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/node/nodetest"
)

// TestTheSessionKeyringOfAContainerIsItsOwn: root of another container, which is the same user to the kernel as this
// test, can neither join nor see it, not even as the user of the keyring, which it becomes with CAP_SETUID; and it is
// not on the quota of root, which root of any container can use up so that no container gets a keyring and starts.
// Execs have the keyring of their container.
//
// Seen to fail with KeyringUID left out of Start in keeper/runtime/stage, with it left out for execs, without setfsuid
// in join_keyring, with the container's ID in the name, and with the rights of the user as the kernel gives them.
func TestTheSessionKeyringOfAContainerIsItsOwn(t *testing.T) {
	nodetest.BerthOnly(t, "containerd's keyrings are root's")
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n).Run()
	h := fnv.New32a()
	h.Write([]byte(c.ID))
	uid := 0xe0000000 | h.Sum32()>>4 // see plan.KeyringUID
	if n := keysOf(t, uid); n != 1 {
		t.Errorf("user %d has %d keyrings", uid, n)
	}
	running := make(chan error, 1)
	go func() {
		_, err := c.Exec(60, "sh", "-c", "touch /tmp/runs; while test -e /tmp/runs; do sleep 0.1; done")
		running <- err
	}()
	nodetest.Eventually(t, 10*time.Second, "the exec runs", func() error {
		got, err := c.Exec(10, "test", "-e", "/tmp/runs")
		if err == nil && got.ExitCode != 0 {
			err = fmt.Errorf("exit code %d", got.ExitCode)
		}
		return err
	})
	if n := keysOf(t, uid); n != 1 {
		t.Errorf("with an exec user %d has %d keyrings", uid, n)
	}
	if keys, err := os.ReadFile("/proc/keys"); err != nil || strings.Contains(string(keys), "_ses."+c.ID) {
		t.Errorf("the exec has another keyring, which is root's: %v", err)
	}
	c.Sh("rm /tmp/runs")
	if err := <-running; err != nil {
		t.Error(err)
	}
	for _, user := range []uint32{0, uid} {
		joined, seen := joinAs(user, "_ses."+c.ID)
		// type;user;group;rights;name. One that the kernel has just made is not to be found by others; a container's is.
		if !strings.HasPrefix(joined, "keyring;0;0;3f13") {
			t.Errorf("the keyring that is joined as user %d is %s", user, joined)
		}
		if strings.Contains(seen, fmt.Sprintf(" %d ", int32(uid))) { // as the kernel prints it
			t.Errorf("user %d sees keys of user %d:\n%s", user, uid, seen)
		}
	}
}

// joinAs is what the kernel says of a session keyring that a thread of root joins by its name, with the rights of a
// user, and the keys that this user sees.
func joinAs(user uint32, name string) (joined, seen string) {
	type result struct{ joined, seen string }
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends, and with it a keyring that it makes
		if err := unix.Setfsuid(int(user)); err != nil {
			done <- result{joined: err.Error()}
			return
		}
		keys, err := os.ReadFile("/proc/keys")
		if err != nil {
			keys = []byte(err.Error())
		}
		ring, err := unix.KeyctlJoinSessionKeyring(name)
		var text string
		if err == nil {
			text, err = unix.KeyctlString(unix.KEYCTL_DESCRIBE, ring)
		}
		if err != nil {
			text = err.Error()
		}
		done <- result{text, string(keys)}
	}()
	r := <-done
	return r.joined, r.seen
}

// keysOf is how many keys and keyrings count against the quota of a user.
func keysOf(t *testing.T, uid uint32) (n int) {
	t.Helper()
	users, err := os.ReadFile("/proc/key-users")
	if err != nil {
		t.Skip("the kernel does not say who has keys:", err)
	}
	for line := range strings.Lines(string(users)) {
		var user uint32
		var all, keys, known, used int
		if got, _ := fmt.Sscanf(line, "%d: %d %d/%d %d/", &user, &all, &keys, &known, &used); got == 5 && user == uid {
			n = used
		}
	}
	return n
}
