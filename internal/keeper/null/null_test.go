package null

import (
	"io"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func status(t testing.TB, f *os.File) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st
}

func TestEveryNodeIsANullDeviceOfItsOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	host, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	before := status(t, host)
	var all []*os.File
	for range 3 {
		f, err := Open()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		all = append(all, f)
		if n, err := f.WriteString("lost"); n != 4 || err != nil {
			t.Errorf("write: %d, %v", n, err)
		}
		if n, err := f.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("read: %d, %v", n, err)
		}
		// As programs do it that are told to read /dev/stdin.
		again, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), os.O_RDWR, 0)
		if err != nil {
			t.Error(err)
		} else {
			again.Close()
		}
	}
	if err := all[0].Chown(200000, 200001); err != nil {
		t.Fatal(err)
	}
	if err := all[0].Chmod(0); err != nil {
		t.Fatal(err)
	}
	for _, f := range all[1:] {
		if st := status(t, f); st.Rdev != Device || st.Mode != unix.S_IFCHR|0o666 || st.Uid != 0 ||
			st.Gid != 0 || st.Nlink != 0 {
			t.Errorf("a node is %+v", st)
		}
	}
	if after := status(t, host); after.Uid != before.Uid || after.Gid != before.Gid || after.Mode != before.Mode ||
		after.Ctim != before.Ctim {
		t.Errorf("the host's was %+v and is %+v", before, after)
	}
}

// The host's own, to compare with.
func BenchmarkOpen(b *testing.B) {
	for name, open := range map[string]func() (*os.File, error){
		"own": Open, "host": func() (*os.File, error) { return os.OpenFile(os.DevNull, os.O_RDWR, 0) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				f, err := open()
				if err != nil {
					b.Fatal(err)
				}
				f.Close()
			}
		})
	}
}
