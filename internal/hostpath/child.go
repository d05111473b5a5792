package hostpath

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// childName makes this process's own binary a child that resolves one path.
const childName = "berth-hostpath"

const (
	// patience is how long a file system may take to answer.
	patience = 5 * time.Second
	// maxStuck bounds the children that wait for file systems.
	maxStuck = 32
)

// Before the process does anything else. It has one path to look at, and no more.
func init() {
	if len(os.Args) != 2 || os.Args[0] != childName {
		return
	}
	var a answer
	r, err := wait(os.Args[1])
	if err != nil {
		a.Error, a.Missing = err.Error(), errors.Is(err, fs.ErrNotExist)
	} else {
		a.Resolved = r
	}
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// stuck are the paths that children wait for, which ask has given up.
var stuck struct {
	sync.Mutex
	paths map[string]int
	count int
}

func ask(path string) (Resolved, error) {
	stuck.Lock()
	busy, count := stuck.paths[path] > 0, stuck.count
	stuck.Unlock()
	if busy || count >= maxStuck {
		return Resolved{}, unanswered(path)
	}
	cmd := exec.Command("/proc/self/exe", path)
	cmd.Args[0] = childName
	cmd.Env = []string{}
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout = &out
	started, done := make(chan *os.Process, 1), make(chan error, 1)
	go func() {
		// Pdeathsig is about the thread that starts the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			started <- cmd.Process
			err = cmd.Wait()
		}
		done <- err
	}()
	select {
	case err := <-done:
		return parse(path, out.Bytes(), err)
	case <-time.After(patience):
	}
	give(path, 1)
	select {
	case p := <-started:
		_ = p.Kill()
	default:
	}
	go func() {
		<-done
		give(path, -1)
	}()
	return Resolved{}, unanswered(path)
}

// give notes that a child more, or less, waits for a path.
func give(path string, n int) {
	stuck.Lock()
	defer stuck.Unlock()
	if stuck.paths == nil {
		stuck.paths = map[string]int{}
	}
	stuck.count += n
	if stuck.paths[path] += n; stuck.paths[path] == 0 {
		delete(stuck.paths, path)
	}
}

func parse(path string, out []byte, err error) (Resolved, error) {
	var a answer
	if err == nil {
		err = json.Unmarshal(out, &a)
	}
	if err != nil {
		return Resolved{}, fmt.Errorf("look at %s: %w", path, err)
	}
	return a.result()
}
