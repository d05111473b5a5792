// Package wire is what the program on the host and the agent in the guest say to each other: JSON values, one after the
// other, over a port of virtio-serial. The host sends commands, one at a time; the agent answers each with replies.
package wire

import "time"

// Port is the name of the virtio-serial port.
const Port = "berth.vm"

// Share is where the guest mounts what the host shares, and Tag is the name of that file system.
const (
	Share = "/host"
	Tag   = "host"
)

// DirsFile is a file of the share: a JSON list of absolute paths. Each is shared read-only as tree/PATH, and appears
// in the guest at the same path, where what the guest writes stays in the guest.
const DirsFile = "dirs.json"

// Command is run in the guest as root.
type Command struct {
	Args  []string
	Dir   string
	Env   []string      // in addition to the agent's
	Limit time.Duration // after it, the command and all that it started are killed
}

// Reply is a piece of a command's output, or its end. The agent's first is neither: it says Ready, or why it is not.
type Reply struct {
	Ready  bool   `json:",omitempty"`
	Output []byte `json:",omitempty"` // of stdout and stderr
	Done   bool   `json:",omitempty"`
	Code   int    `json:",omitempty"` // exit code; -1: killed, or not started
	Error  string `json:",omitempty"`
}
