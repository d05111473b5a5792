package node

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is one row of /proc. Exe is empty for a process whose program cannot be read.
type Process struct {
	PID, Parent int
	State       byte // R, S, D, T, Z, … as in /proc/PID/stat
	Exe         string
	Args        []string
	Cgroups     []string // paths in each hierarchy
	NetNS       string   // net:[inode]
}

// Processes lists what runs on the machine. Processes that end meanwhile are left out.
func Processes() ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []Process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if p, err := readProcess(pid); err == nil {
			all = append(all, p)
		}
	}
	return all, nil
}

func readProcess(pid int) (Process, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return Process{}, err
	}
	// The name in parentheses may hold spaces and parentheses.
	_, rest, ok := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 2 {
		return Process{}, fmt.Errorf("%s/stat: %q", dir, stat)
	}
	p := Process{PID: pid, State: fields[0][0]}
	if p.Parent, err = strconv.Atoi(fields[1]); err != nil {
		return Process{}, err
	}
	p.Exe, _ = os.Readlink(dir + "/exe")
	p.NetNS, _ = os.Readlink(dir + "/ns/net")
	if args, err := os.ReadFile(dir + "/cmdline"); err == nil && len(args) > 0 {
		p.Args = strings.Split(strings.TrimSuffix(string(args), "\x00"), "\x00")
	}
	if cgroups, err := os.ReadFile(dir + "/cgroup"); err == nil {
		for line := range strings.Lines(string(cgroups)) {
			if parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3); len(parts) == 3 {
				p.Cgroups = append(p.Cgroups, parts[2])
			}
		}
	}
	return p, nil
}

// String is the process as a person would name it.
func (p Process) String() string {
	return fmt.Sprintf("pid %d (parent %d, state %c) %s %s", p.PID, p.Parent, p.State, p.Exe, strings.Join(p.Args, " "))
}

// Peer is the PID of the process that listens on a unix socket.
func Peer(socket string) (int, error) {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return int(cred.Pid), nil
}

// PSS is the proportional set size of a process in bytes: its private pages, and its share of those that it shares.
func PSS(pid int) (uint64, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		if rest, ok := strings.CutPrefix(scanner.Text(), "Pss:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, scanner.Err()
}

// CPUTime is what all threads of a process have spent on a processor, those that have ended too, by the scheduler's
// clock.
func CPUTime(pid int) (time.Duration, error) {
	const scheduler = 2 // of the clocks of a process: clock_getcpuclockid(3)
	var spent unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduler), &spent); err != nil {
		return 0, fmt.Errorf("the processor time of process %d: %w", pid, err)
	}
	return time.Duration(spent.Nano()), nil
}

// Halt stops a process (SIGSTOP), and returns once each of its threads has stopped: on a busy machine a thread that has
// not seen the signal yet goes on answering for a while after kill(2) has returned.
func Halt(pid int, wait time.Duration) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop %d: %w", pid, err)
	}
	for deadline := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
		running, err := runningThreads(pid)
		if err != nil || len(running) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("threads %v of process %d still run %v after SIGSTOP", running, pid, wait)
		}
	}
}

// runningThreads are the threads of a process that have not been stopped.
func runningThreads(pid int) ([]int, error) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil, err
	}
	var running []int
	for _, entry := range threads {
		id, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if thread, err := readProcess(id); err == nil && !strings.ContainsRune("TtZX", rune(thread.State)) {
			running = append(running, id)
		}
	}
	return running, nil
}

// kill sends SIGKILL to a process of ours and waits until it is gone or a zombie of somebody else's.
func kill(pid int, wait time.Duration) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	return waitGone(pid, wait)
}

func waitGone(pid int, wait time.Duration) error {
	for deadline := time.Now().Add(wait); ; time.Sleep(2 * time.Millisecond) {
		p, err := readProcess(pid)
		if err != nil || p.State == 'Z' || p.State == 'X' {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s still runs after %v", p, wait)
		}
	}
}

// MemoryIsShort says whether less than a tenth of the machine's memory is left. A suite that fills a node stops then.
func MemoryIsShort() (bool, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return false, err
	}
	values := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		key, rest, _ := strings.Cut(line, ":")
		if fields := strings.Fields(rest); len(fields) > 0 {
			values[key], _ = strconv.ParseUint(fields[0], 10, 64) // others than numbers are not looked at
		}
	}
	if values["MemTotal"] == 0 || values["MemAvailable"] == 0 {
		return false, fmt.Errorf("/proc/meminfo names no MemTotal or MemAvailable: %q", text)
	}
	return values["MemAvailable"] < values["MemTotal"]/10, nil
}
