// Package apparmor knows what the kernel has of AppArmor: whether it can be used, which profiles are loaded, and how
// the node's default profile is loaded again when somebody has unloaded it.
package apparmor

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	// sysfs is where the node's is mounted.
	sysfs = "/sys"
	// directory is where securityfs has AppArmor's files, below sysfs.
	directory = "/kernel/security/apparmor"
	// Files is the same on the node.
	Files = sysfs + directory
)

// Usable tells whether the kernel has AppArmor, and this process can load profiles and see which are loaded.
func Usable() bool { return usable(sysfs) }

func usable(sysfs string) bool { return inKernel(sysfs) && seen(sysfs) }

// OutOfReach tells whether the kernel has AppArmor, but this process sees no securityfs with its files, as in a
// container. Containers then have the profile that this process has, and none of their own.
func OutOfReach() bool { return outOfReach(sysfs) }

func outOfReach(sysfs string) bool { return inKernel(sysfs) && !seen(sysfs) }

func inKernel(sysfs string) bool {
	text, err := os.ReadFile(sysfs + "/module/apparmor/parameters/enabled")
	return err == nil && len(text) > 0 && text[0] == 'Y'
}

func seen(sysfs string) bool {
	_, err := os.Stat(sysfs + directory)
	return !errors.Is(err, os.ErrNotExist)
}

// Loaded tells whether the kernel has a profile of this name.
func Loaded(name string) (bool, error) { return loaded(sysfs, name) }

func loaded(sysfs, name string) (bool, error) {
	f, err := os.Open(sysfs + directory + "/profiles")
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() { // name (mode)
		if rest, ok := strings.CutPrefix(lines.Text(), name); ok && strings.HasPrefix(rest, " (") {
			return true, nil
		}
	}
	return false, lines.Err()
}

// ErrNoParser says that no apparmor_parser is installed, without which no profile can be loaded.
var ErrNoParser = errors.New("apparmor_parser is not installed")

// Parser finds the program that loads profiles. It is also looked for where distributions install it, since the PATH of
// a daemon that is started by hand often lacks these directories.
func Parser() (string, error) { return parser("/usr/sbin", "/sbin") }

func parser(dirs ...string) (string, error) {
	const name = "apparmor_parser"
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range dirs {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", ErrNoParser
}
