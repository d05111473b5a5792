package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

func init() {
	commands["ids"] = ids
	commands["probe"] = probe
}

// ids says who this process is.
func ids([]string) error {
	fmt.Println("EUID", os.Geteuid(), "EGID", os.Getegid())
	return nil
}

// probe tries what this user can do with each path that it reads: read it, write to it, make something in it,
// connect to it, and run it as a program that says who it is.
func probe([]string) error {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		path := lines.Text()
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			continue
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if _, err := os.ReadDir(path); err == nil {
				fmt.Fprintln(out, "LISTED", path)
			}
			if name := filepath.Join(path, "intruder-was-here"); os.Mkdir(name, 0o755) == nil {
				_ = os.Remove(name)
				fmt.Fprintln(out, "MADE", path)
			}
		case unix.S_IFSOCK:
			for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET, unix.SOCK_DGRAM} {
				fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				if unix.Connect(fd, &unix.SockaddrUnix{Name: path}) == nil {
					fmt.Fprintln(out, "CONNECTED", path)
				}
				unix.Close(fd)
			}
		case unix.S_IFREG:
			for what, flags := range map[string]int{"READ": unix.O_RDONLY, "WRITTEN": unix.O_WRONLY | unix.O_APPEND} {
				if fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0); err == nil {
					unix.Close(fd)
					fmt.Fprintln(out, what, path)
				}
			}
			if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 && st.Mode&0o111 != 0 {
				if said, err := exec.Command(path, "ids").Output(); err == nil {
					fmt.Fprintln(out, "RAN", path, strings.TrimSpace(string(said)))
				}
			}
		}
	}
	return lines.Err()
}
