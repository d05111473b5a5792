package progress

import (
	"os"
	"syscall"
)

func openTerminal(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY, 0)
}
