package shim

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// openTerminal makes the terminal through which the keeper and a shim exchange the input and output of a container's
// own terminal, which the shim has. It is in raw mode: it changes nothing of what passes.
func openTerminal(size *specs.Box) (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "terminal")
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open a terminal: %w", err), master.Close())
		}
	}()
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, err
	}
	if slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	mode, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err == nil {
		mode.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL |
			unix.IXON
		mode.Oflag &^= unix.OPOST
		mode.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
		mode.Cc[unix.VMIN], mode.Cc[unix.VTIME] = 1, 0
		err = unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, mode)
	}
	if err == nil && size != nil && size.Width > 0 && size.Height > 0 {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(size.Width), Row: uint16(size.Height)})
	}
	if err != nil {
		slave.Close()
		return nil, nil, err
	}
	return master, slave, nil
}
