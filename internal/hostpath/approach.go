package hostpath

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// arrived begins a line in which a child names a file system that it has come to, by the device that statx(2) has for
// it, before the child asks that file system for anything. So the last line names the one that does not answer. Bind
// mounts of one file system have one device. The answer follows the lines, as JSON.
const arrived = "at "

// maxLinks is how many links the kernel follows in one path.
const maxLinks = 40

// approach goes to a path one name at a time, as the kernel does, and writes a line for each file system that it comes
// to. One that is mute is not asked for anything: the error is errdefs.ErrUnavailable. A path that leads nowhere is no
// error here: what the child does next says it better.
func approach(path string, mute []string, to io.Writer) error {
	dir, err := openNode(unix.AT_FDCWD, "/")
	if err != nil {
		return nil
	}
	defer func() { unix.Close(dir) }()
	var links int
	var system string
	for names := append([]string{"."}, strings.Split(path, "/")...); len(names) > 0; {
		name := names[0]
		names = names[1:]
		if name == "" {
			continue
		}
		next, err := openNode(dir, name)
		if err != nil {
			return nil
		}
		var st unix.Statx_t
		if err := unix.Statx(next, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st); err != nil {
			unix.Close(next)
			return nil
		}
		if now := fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor); now != system {
			system = now
			if _, err := fmt.Fprintln(to, arrived+system); err != nil {
				unix.Close(next)
				return err
			}
			if slices.Contains(mute, system) {
				unix.Close(next)
				return unanswered(path)
			}
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			unix.Close(dir)
			dir = next
			continue
		}
		target, err := linkTarget(next)
		unix.Close(next)
		if links++; err != nil || links > maxLinks {
			return nil
		}
		if strings.HasPrefix(target, "/") {
			root, err := openNode(unix.AT_FDCWD, "/")
			if err != nil {
				return nil
			}
			unix.Close(dir)
			dir = root
		}
		names = append(append([]string{"."}, strings.Split(target, "/")...), names...)
	}
	return nil
}

// linkTarget reads the link that a descriptor stands for.
func linkTarget(fd int) (string, error) {
	buf := make([]byte, unix.PathMax)
	for {
		n, err := unix.Readlinkat(fd, "", buf)
		if !errors.Is(err, unix.EINTR) {
			return string(buf[:max(n, 0)]), err
		}
	}
}

// output is what a child has written so far. Its methods may be called while the child writes.
type output struct {
	mu   sync.Mutex
	text []byte
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	return len(p), nil
}

// parts separates the last file system that the child has come to (empty: none) from the answer.
func (o *output) parts() (system string, answer []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	answer = o.text
	for {
		line, rest, whole := bytes.Cut(answer, []byte("\n"))
		found, ok := bytes.CutPrefix(line, []byte(arrived))
		if !whole || !ok {
			return system, answer
		}
		system, answer = string(found), rest
	}
}

// system is the file system that the child is at; empty: it has not said.
func (o *output) system() string {
	system, _ := o.parts()
	return system
}

func (o *output) answer() []byte {
	_, answer := o.parts()
	return answer
}
