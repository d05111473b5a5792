// Package loglimit has the limits of a container's log: the size at which its file is rotated, and how much it may get
// in a second. The configuration and annotations of pods set them, and the keeper, which writes the logs, keeps them.
package loglimit

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/go-units"
)

// Over says what becomes of output that is over the rate.
type Over string

const (
	// Wait holds the container back: its writes wait until there is room. Nothing is lost.
	Wait Over = "wait"
	// Drop leaves whole lines out, and says in the log how many.
	Drop Over = "drop"
)

// What the limits may be.
const (
	// MinSize is what the keeper writes at once: a smaller file could not have it.
	MinSize = 128 << 10
	// MinFiles is the file that is written and one that was rotated, as kubelets have it. With one file alone, output
	// would be removed in the moment in which it is written.
	MinFiles = 2
	MaxFiles = 1000
	MinRate  = 1 << 10
	MinBurst = 4 << 10
	// DefaultSize is that of a kubelet (containerLogMaxSize), for logs that nobody rotates.
	DefaultSize = 10 << 20
	// DefaultFiles is that of a kubelet (containerLogMaxFiles).
	DefaultFiles = 5
)

// Limits are those of one container. The zero value is none.
type Limits struct {
	// MaxSize is the most bytes that a file has; 0: the keeper does not rotate it.
	MaxSize int64 `json:"maxSize,omitempty"`
	// MaxFiles is how many files there are at most, the one that is written included.
	MaxFiles int `json:"maxFiles,omitempty"`
	// Rate is how many bytes the log gets in a second, in the long run; 0: as many as come.
	Rate int64 `json:"rate,omitempty"`
	// Burst is how many it may get at once.
	Burst int64 `json:"burst,omitempty"`
	Over  Over  `json:"over,omitempty"`
}

// Complete returns the limits with defaults for what belongs to a limit and is not set, and without what belongs to
// one that is off.
func (l Limits) Complete() Limits {
	switch {
	case l.MaxSize == 0:
		l.MaxFiles = 0
	case l.MaxFiles == 0:
		l.MaxFiles = DefaultFiles
	}
	if l.Rate == 0 {
		l.Burst, l.Over = 0, ""
		return l
	}
	if l.Burst == 0 {
		l.Burst = max(l.Rate, MinBurst)
	}
	if l.Over == "" {
		l.Over = Wait
	}
	return l
}

// Check says what is wrong with limits; an error is errdefs.ErrInvalidArgument.
func (l Limits) Check() error {
	var err error
	switch {
	case l.MaxSize != 0 && l.MaxSize < MinSize:
		err = TooSmall("max_size", MinSize)
	case l.MaxSize != 0 && (l.MaxFiles < MinFiles || l.MaxFiles > MaxFiles):
		err = fmt.Errorf("max_files: %d is not in %d..%d", l.MaxFiles, MinFiles, MaxFiles)
	case l.Rate != 0 && l.Rate < MinRate:
		err = TooSmall("rate", MinRate)
	case l.Rate != 0 && l.Burst < MinBurst:
		err = TooSmall("burst", MinBurst)
	case l.Rate != 0 && l.Over != Wait && l.Over != Drop:
		err = fmt.Errorf("over: %q is neither %s nor %s", l.Over, Wait, Drop)
	}
	if err != nil {
		return fmt.Errorf("limits of a log: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// TooSmall is the error of a size below the least.
func TooSmall(key string, least int64) error {
	return fmt.Errorf("%s: the least is %s", key, units.CustomSize("%.0f%s", float64(least), 1024, []string{"", "k", "m"}))
}

// ParseSize reads a size such as 10m, 512k or 10Mi, in powers of 1024. 0 and an empty text are no limit.
func ParseSize(text string) (int64, error) {
	if text == "" || text == "0" {
		return 0, nil
	}
	if strings.HasSuffix(text, "i") { // as Kubernetes writes it
		text += "B"
	}
	n, err := units.RAMInBytes(text)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%q is no size such as 10m or 512k", text)
	}
	return n, nil
}
