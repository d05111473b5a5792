package stage

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestOnlyARefusalIsLacking: what is said of the kernel holds for the keeper's whole life, so a machine that is short
// of processes, memory or descriptors when it is asked is not one without clone3(2). Seen to fail where only EBADF,
// which the kernel answers when it knows the call, was none.
func TestOnlyARefusalIsLacking(t *testing.T) {
	for err, want := range map[error]bool{
		unix.ENOSYS: true, // a kernel before 5.3, or a filter
		unix.EPERM:  true, // a filter
		unix.EINVAL: true, // a kernel before 5.7 knows no CLONE_INTO_CGROUP
		unix.E2BIG:  true, // nor the field of the descriptor
		unix.EBADF:  false,
		unix.EAGAIN: false,
		unix.ENOMEM: false,
		unix.EMFILE: false,
		unix.ENFILE: false,
		unix.EBUSY:  false,
		nil:         false,
	} {
		if got := refused(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}
