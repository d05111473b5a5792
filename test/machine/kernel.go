package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"berth/test/node"
)

// devices are all nodes in /dev but terminals, and what is in its file systems of memory.
func devices() (map[string]string, error) {
	out := map[string]string{}
	err := filepath.WalkDir("/dev", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		text, err := describe(path)
		if err != nil {
			return err
		}
		if text != "" {
			out[path] = text
		}
		if entry.IsDir() && (path == "/dev/pts" || path == "/dev/shm" || path == "/dev/mqueue") {
			return fs.SkipDir
		}
		return nil
	})
	return out, err
}

// describe is a file's type, mode and owner, with a device's number and a link's target; empty where there is none.
func describe(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		if err == unix.ENOENT {
			return "", nil
		}
		return "", &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	text := fmt.Sprintf("%o of %d:%d", st.Mode&0o7777, st.Uid, st.Gid)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR, unix.S_IFBLK:
		kind := map[uint32]string{unix.S_IFCHR: "character", unix.S_IFBLK: "block"}[st.Mode&unix.S_IFMT]
		return fmt.Sprintf("%s device %d:%d, %s", kind, unix.Major(st.Rdev), unix.Minor(st.Rdev), text), nil
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return "link to " + target, err
	case unix.S_IFDIR:
		return "directory, " + text, nil
	case unix.S_IFREG:
		return "file, " + text, nil
	}
	return fmt.Sprintf("type %o, %s", st.Mode&unix.S_IFMT, text), nil
}

// unstable are sysctls that the kernel changes by itself, or that count.
var unstable = regexp.MustCompile(
	`^(kernel/(random/|ns_last_pid$|pty/nr$|perf_|sched_domain/)|` +
		`fs/(dentry-state|file-nr|inode-nr|inode-state|aio-nr|quota/)|` +
		`net/netfilter/nf_conntrack_count$|net/ipv[46]/(conf|neigh)/|` +
		`vm/(min_free_kbytes|lowmem_reserve_ratio)$|fs/binfmt_misc/)`)

// lasting are the exceptions: settings of all interfaces, and of those to come.
var lasting = regexp.MustCompile(`^net/ipv[46]/(conf|neigh)/(all|default|lo)/`)

func sysctls() (map[string]string, error) {
	out := map[string]string{}
	err := filepath.WalkDir("/proc/sys", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil // a directory of an interface that has gone
		}
		name := strings.TrimPrefix(path, "/proc/sys/")
		if entry.IsDir() || unstable.MatchString(name) && !lasting.MatchString(name) {
			return nil
		}
		info, err := entry.Info()
		if err != nil || info.Mode()&0o400 == 0 {
			return nil
		}
		// What cannot be read here cannot be compared.
		if text, err := os.ReadFile(path); err == nil {
			out[name] = fmt.Sprintf("%.200q", strings.TrimSpace(string(text)))
		}
		return nil
	})
	return out, err
}

func cgroups() (map[string]string, error) {
	roots, err := node.CgroupMounts()
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				out[path] = there
			}
			return nil // one that has gone
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// mounts are those of this mount namespace. IDs differ each time that something is mounted.
func mounts() (map[string]string, error) {
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	numbers := regexp.MustCompile(`:\d+`)
	var all []string
	for _, m := range infos {
		all = append(all, fmt.Sprintf("%s: %s %s %s %s %s %s", m.Mountpoint, m.FSType, m.Source, m.Root,
			m.Options, m.VFSOptions,
			numbers.ReplaceAllString(m.Optional, "")))
	}
	return lines(all), nil
}

func loops() (map[string]string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	out := map[string]string{}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil {
			out[strings.Split(file, "/")[3]] = strings.TrimSpace(string(text))
		}
	}
	return out, err
}

func modules() (map[string]string, error) {
	text, err := os.ReadFile("/proc/modules")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a kernel without modules
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		out[strings.Fields(line)[0]] = there
	}
	return out, err
}

// etc are directories of which all files count, and flat are those of which only the names do.
var (
	etc  = []string{"/etc"}
	flat = []string{"/run", "/run/netns", "/tmp", "/var/tmp", "/var/lib", "/var/lib/cni", "/var/lib/kubelet", "/var/log",
		"/opt", "/dev/shm", "/dev/mqueue"}
)

func files() (map[string]string, error) {
	out := map[string]string{}
	add := func(path string, size bool) error {
		text, err := describe(path)
		if err != nil || text == "" {
			return err
		}
		if info, err := os.Lstat(path); err == nil && size && info.Mode().IsRegular() {
			text += fmt.Sprintf(", %d bytes of %s", info.Size(), info.ModTime().UTC().Format("2006-01-02T15:04:05.999"))
		}
		out[path] = text
		return nil
	}
	for _, top := range etc {
		err := filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return nil
			}
			return add(path, true)
		})
		if err != nil {
			return nil, err
		}
	}
	for _, top := range append([]string{"/", "/var"}, flat...) {
		if err := add(top, false); err != nil {
			return nil, err
		}
	}
	for _, top := range flat {
		entries, err := os.ReadDir(top)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, entry := range entries {
			if err := add(filepath.Join(top, entry.Name()), false); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}
