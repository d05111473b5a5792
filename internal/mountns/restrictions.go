package mountns

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// restrictions are the attributes by which a mount allows less, as mountinfo and mount(8) call them.
var restrictions = []struct {
	attribute uint64
	option    string
}{
	{unix.MOUNT_ATTR_RDONLY, "ro"},
	{unix.MOUNT_ATTR_NOSUID, "nosuid"},
	{unix.MOUNT_ATTR_NODEV, "nodev"},
	{unix.MOUNT_ATTR_NOEXEC, "noexec"},
	{unix.MOUNT_ATTR_NOSYMFOLLOW, "nosymfollow"},
}

// mountRequest is struct mnt_id_req of linux/mount.h.
type mountRequest struct {
	size, _ uint32
	mount   uint64
	param   uint64
}

// mountBasic is STATMOUNT_MNT_BASIC.
const mountBasic = 2

// mountAnswer is struct statmount of linux/mount.h, as far as mountBasic fills it in.
type mountAnswer struct {
	_          [8]byte
	mask       uint64
	_          [48]byte
	attributes uint64
	_          [440]byte
}

// Restrictions are the options by which a mount of this mount namespace allows less: ro, nosuid, nodev, noexec and
// nosymfollow. unique is its ID by STATX_MNT_ID_UNIQUE. It asks the kernel for this mount alone (Linux 6.8): the table
// of mounts is as long as the node has pods. An error says that somebody else has to be asked.
func Restrictions(unique uint64) ([]string, error) {
	request := mountRequest{size: uint32(unsafe.Sizeof(mountRequest{})), mount: unique, param: mountBasic}
	var answer mountAnswer
	_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&request)),
		uintptr(unsafe.Pointer(&answer)), unsafe.Sizeof(answer), 0, 0, 0)
	switch {
	case errno != 0:
		return nil, errno
	case answer.mask&mountBasic == 0:
		return nil, unix.ENOTSUP
	}
	var options []string
	for _, r := range restrictions {
		if answer.attributes&r.attribute != 0 {
			options = append(options, r.option)
		}
	}
	return options, nil
}

// IsRestriction tells whether an option of a mount is one that Restrictions gives.
func IsRestriction(option string) bool {
	for _, r := range restrictions {
		if r.option == option {
			return true
		}
	}
	return false
}
