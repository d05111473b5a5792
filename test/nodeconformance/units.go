package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// standIns are the programs of a systemd machine that the suite runs, as far as it does: the kubelet is its unit.
var standIns = []string{"sudo", "systemd-run", "systemctl"}

// unitsDir has a file for each unit, in a directory that is of these namespaces alone.
var unitsDir = "/run/units"

// unit is what systemd-run was told to run.
type unit struct {
	Name    string
	Log     string // what it prints is appended here
	Dir     string
	Command []string
	PID     int
	Started uint64 // when, in the kernel's ticks, so that another process of that ID is not taken for it
}

// standIn is this program where it was started under a name of standIns.
func standIn(args []string) (done bool, err error) {
	switch filepath.Base(args[0]) {
	case "sudo":
		if len(args) < 2 {
			return true, errors.New("usage: sudo program [argument...]")
		}
		path, err := exec.LookPath(args[1])
		if err != nil {
			return true, err
		}
		return true, syscall.Exec(path, args[1:], os.Environ())
	case "systemd-run":
		return true, systemdRun(args[1:])
	case "systemctl":
		return true, systemctl(args[1:])
	}
	return false, nil
}

func systemdRun(args []string) error {
	u := unit{}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		flag := args[0]
		args = args[1:]
		switch {
		case flag == "--version":
			fmt.Println("systemd 252 (stand-in)")
			return nil
		case flag == "-p" && len(args) > 0:
			if log, ok := strings.CutPrefix(args[0], "StandardError=append:"); ok {
				u.Log = log
			} else if args[0] != "Delegate=true" {
				return fmt.Errorf("the property %s is not known here", args[0])
			}
			args = args[1:]
		case strings.HasPrefix(flag, "--unit="):
			u.Name = strings.TrimPrefix(flag, "--unit=")
		case strings.HasPrefix(flag, "--slice="), flag == "--remain-after-exit":
		default:
			return fmt.Errorf("the flag %s is not known here", flag)
		}
	}
	if u.Name == "" || u.Log == "" || len(args) == 0 {
		return fmt.Errorf("a unit has a name (%q), a log (%q) and a command (%q)", u.Name, u.Log, args)
	}
	for _, arg := range args {
		u.Command = append(u.Command, strings.NewReplacer("%%", "%", "$$", "$").Replace(arg))
	}
	var err error
	if u.Dir, err = os.Getwd(); err != nil {
		return err
	}
	return u.start()
}

func systemctl(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: systemctl verb unit [flag...]")
	}
	pattern := strings.TrimSuffix(args[1], ".service")
	if args[0] != "list-units" {
		pattern += ".service"
	}
	files, err := filepath.Glob(filepath.Join(unitsDir, pattern))
	if err != nil {
		return err
	}
	for _, file := range files {
		u, err := readUnit(file)
		if err != nil {
			return err
		}
		switch args[0] {
		case "list-units":
			state := "exited"
			if u.running() {
				state = "running"
			} else if len(args) > 2 && args[2] == "--state=running" {
				continue
			}
			fmt.Printf("%s loaded active %s %s\n", u.Name, state, u.Command[0])
		case "reset-failed":
		case "kill":
			err = u.signal(syscall.SIGTERM)
		case "stop":
			err = errors.Join(u.end(), os.Remove(file))
		case "restart", "start":
			if args[0] == "restart" {
				err = u.end()
			}
			if err == nil && !u.running() {
				err = u.start()
			}
		default:
			err = fmt.Errorf("the verb %s is not known here", args[0])
		}
		if err != nil {
			return err
		}
	}
	if len(files) == 0 && args[0] != "list-units" {
		return fmt.Errorf("unit %s not found", args[1])
	}
	return nil
}

func readUnit(file string) (u unit, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return u, err
	}
	return u, json.Unmarshal(data, &u)
}

// start begins the unit's command and writes down which process it is. The first process of the namespaces reaps it.
func (u *unit) start() error {
	log, err := os.OpenFile(u.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(u.Command[0], u.Command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = u.Dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	u.PID = cmd.Process.Pid
	u.Started, _ = started(u.PID) // 0 where it has ended already
	data, err := json.Marshal(u)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(unitsDir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(unitsDir, u.Name), data, 0o644)
}

// started is when a process began; ok is false where it has ended.
func started(pid int) (ticks uint64, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0, false
	}
	ticks, err = strconv.ParseUint(fields[19], 10, 64)
	return ticks, err == nil
}

func (u *unit) running() bool {
	ticks, ok := started(u.PID)
	return ok && ticks == u.Started
}

func (u *unit) signal(s syscall.Signal) error {
	if !u.running() {
		return nil
	}
	if err := syscall.Kill(u.PID, s); err != nil && err != syscall.ESRCH {
		return fmt.Errorf("signal %s: %w", u.Name, err)
	}
	return nil
}

// end ends the unit's process, and waits until it is gone.
func (u *unit) end() error {
	const patience = 90 * time.Second // systemd's own
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := u.signal(s); err != nil {
			return err
		}
		for deadline := time.Now().Add(patience); u.running() && time.Now().Before(deadline); {
			time.Sleep(20 * time.Millisecond)
		}
	}
	if u.running() {
		return fmt.Errorf("%s does not end", u.Name)
	}
	return nil
}
