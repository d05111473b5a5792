package filter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// forbidsAllBut is the program of a filter that allows one call.
func forbidsAllBut(number uint32) []byte {
	var out []byte
	for _, i := range []struct {
		op     uint16
		jt, jf uint8
		k      uint32
	}{
		{unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, 0, 0, dataNumber},
		{unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, 0, 1, number},
		{unix.BPF_RET | unix.BPF_K, 0, 0, unix.SECCOMP_RET_ALLOW},
		{unix.BPF_RET | unix.BPF_K, 0, 0, unix.SECCOMP_RET_ERRNO},
	} {
		out = binary.NativeEndian.AppendUint16(out, i.op)
		out = append(out, i.jt, i.jf)
		out = binary.NativeEndian.AppendUint32(out, i.k)
	}
	return out
}

// TestAFilterWithFurtherCalls allows just these, with just these arguments, and is the same filter for all others.
func TestAFilterWithFurtherCalls(t *testing.T) {
	if _, ok := architectures[runtime.GOARCH]; !ok {
		t.Skip("filters of this machine are not known")
	}
	call := func(number uintptr, args ...uint64) []Call {
		c := Call{Number: number}
		copy(c.Args[:], args)
		return []Call{c}
	}
	further := []Call{
		call(unix.SYS_SETSID)[0], call(unix.SYS_IOCTL, 0, unix.TIOCSCTTY)[0], call(unix.SYS_READ, 5, 0, 1)[0],
		call(unix.SYS_WRITE, 5, 0, 12)[0], call(unix.SYS_WRITE, 8, 0, 1)[0],
	}
	f := &Filter{Program: forbidsAllBut(uint32(unix.SYS_GETPID))}
	program, err := f.With(further)
	if err != nil {
		t.Fatal(err)
	}
	wider := &Filter{Program: program}
	for _, c := range []struct {
		what         string
		calls        []Call
		plain, wider bool
	}{
		{"what the filter allows", call(unix.SYS_GETPID), true, true},
		{"the further ones", further, false, true},
		{"one without arguments that has some", call(unix.SYS_SETSID, 1, 2), false, true},
		{"one of any address", call(unix.SYS_READ, 5, 0x7fff0000, 1), false, true},
		{"another argument", call(unix.SYS_IOCTL, 0, unix.TIOCSTI), false, false},
		{"another first argument", call(unix.SYS_READ, 4, 0, 1), false, false},
		{"another last argument", call(unix.SYS_READ, 5, 0, 2), false, false},
		{"arguments of two of them", call(unix.SYS_WRITE, 5, 0, 1), false, false},
		{"another call", call(unix.SYS_MOUNT), false, false},
	} {
		if got := f.Allows(c.calls); got != c.plain {
			t.Errorf("%s: the filter allows it: %v", c.what, got)
		}
		if got := wider.Allows(c.calls); got != c.wider {
			t.Errorf("%s: with the further calls it is allowed: %v", c.what, got)
		}
	}
	more := len(program) - len(f.Program)
	longest := maxProgram - more
	for length, by := range map[int]int{longest: 0, longest + InstructionSize: 1, maxProgram: more / InstructionSize} {
		got, err := (&Filter{Program: make([]byte, length)}).With(further)
		switch want := fmt.Sprintf("too long by %d instructions", by); {
		case by == 0 && (err != nil || len(got) != maxProgram):
			t.Errorf("a filter of %d bytes has become one of %d: %v", length, len(got), err)
		case by > 0 && (!errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), want)):
			t.Errorf("a filter of %d bytes has become one of %d: %v, want %q", length, len(got), err, want)
		}
	}
}
