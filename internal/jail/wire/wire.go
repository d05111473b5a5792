package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Version is that of all that is said here, and of what roles are asked and answer: a child of another version
// is refused. It changes with each of them.
const Version = "2"

// Program is the name of the program that children run.
const Program = "berth-unpack"

// Descriptors that a child begins with. Those of the rings, two for each, and then of the files come behind them.
const (
	FDRequest = iota // a pipe with the task, as JSON
	FDAnswer         // a pipe for an Answer
	FDStderr         // a pipe for what the runtime prints when it crashes
	FDCalls          // a socket (SOCK_SEQPACKET) for calls, or a pipe that nobody reads
	FDFirst
)

// Dir is where a child finds its directories: one name for each, from 0 on.
func Dir(i int) string { return fmt.Sprintf("/dir%d", i) }

// Role is a kind of work that children do. Jail and child have the same: the package whose work it is declares it.
type Role struct {
	// Name says what a child of the role is to do, as in "the child that was to decompress".
	Name string
	// Capabilities are what the role keeps of those in Capabilities, in the host's user namespace.
	Capabilities []uintptr
	// Filesystem admits system calls on files. A role without it has its rings and files, and nothing else.
	Filesystem bool
}

// Nothing is a role that does nothing, to find out whether children can be started.
var Nothing = &Role{Name: "do nothing"}

// Capabilities are all that a role can have. With none of them does a process leave the directories that it has been
// given.
var Capabilities = []uintptr{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_MKNOD, unix.CAP_SETFCAP,
}

// Arguments are the command-line arguments of a child.
type Arguments struct {
	Role string
	// Memory is how much the child's heap may have, in bytes.
	Memory uint64
	// FileSize is the most bytes of a file that it writes.
	FileSize uint64
	In, Out  uint64 // rings to the child, and from it, in this order
	Files    uint64
	Dirs     uint64
}

func (a *Arguments) numbers() []*uint64 {
	return []*uint64{&a.Memory, &a.FileSize, &a.In, &a.Out, &a.Files, &a.Dirs}
}

// List is the program's arguments, its name first.
func (a *Arguments) List() []string {
	list := []string{Program, Version, a.Role}
	for _, n := range a.numbers() {
		list = append(list, strconv.FormatUint(*n, 10))
	}
	return list
}

// ParseArguments reads what List made.
func ParseArguments(list []string) (*Arguments, error) {
	if len(list) < 3 || list[1] != Version {
		return nil, fmt.Errorf("%s and berthd are not of the same version: install both from the same build: %w",
			Program, errdefs.ErrFailedPrecondition)
	}
	a := &Arguments{Role: list[2]}
	numbers := a.numbers()
	if len(list) != 3+len(numbers) {
		return nil, fmt.Errorf("%d arguments", len(list))
	}
	for i, n := range numbers {
		var err error
		if *n, err = strconv.ParseUint(list[3+i], 10, 64); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Answer is a child's answer: the result of its role, or the error.
type Answer struct {
	Result json.RawMessage `json:",omitempty"`
	Error  *Error          `json:",omitempty"`
}

// Error is an error that has passed from one process to another.
type Error struct {
	Text  string
	Kind  string     `json:",omitempty"` // of those that errdefs has and clients act on
	Errno unix.Errno `json:",omitempty"` // of the system call that failed
}

// kinds are the errors of errdefs that a child can mean.
var kinds = map[string]error{
	"invalid-argument":    errdefs.ErrInvalidArgument,
	"resource-exhausted":  errdefs.ErrResourceExhausted,
	"failed-precondition": errdefs.ErrFailedPrecondition,
	"not-found":           errdefs.ErrNotFound,
	"not-implemented":     errdefs.ErrNotImplemented,
}

const maxText = 4 << 10

// NewError makes an error ready to be sent.
func NewError(err error) *Error {
	e := &Error{Text: Printable(err.Error(), maxText)}
	for kind, is := range kinds {
		if errors.Is(err, is) {
			e.Kind = kind
		}
	}
	errors.As(err, &e.Errno)
	return e
}

// Check makes an error that has come from a child safe to show.
func (e *Error) Check() error {
	if _, ok := kinds[e.Kind]; !ok && e.Kind != "" {
		return fmt.Errorf("an error of the kind %.40q", e.Kind)
	}
	e.Text = Printable(e.Text, maxText)
	if e.Text == "" {
		e.Text = "an error without a text"
	}
	return nil
}

func (e *Error) Error() string { return e.Text }

// Unwrap gives back what errors.Is found in the error before it was sent.
func (e *Error) Unwrap() []error {
	var list []error
	if kind := kinds[e.Kind]; kind != nil {
		list = append(list, kind)
	}
	if e.Errno != 0 {
		list = append(list, e.Errno)
	}
	return list
}

// Printable makes a text one that can be shown on a terminal and written to a log, of at most so many bytes.
func Printable(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// Decode reads JSON strictly: what is not known, what comes twice as a document, and what is behind it is an error.
func Decode(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is more behind it")
	}
	return nil
}

// MaxCall is the most bytes of a call or of its answer: an extended attribute with its name, and some more.
const MaxCall = 64<<10 + 1<<10

// Call is something that a child may not do and asks its jail for, about a file that it has open.
type Call struct {
	Op    Op
	Key   string
	Value []byte
}

// Op says what is asked for.
type Op byte

const (
	SetXattr Op = iota + 1
	GetXattr
	// ListXattr asks for the keys of all extended attributes, each with a NUL behind it.
	ListXattr
)

// callHeader is the operation and the length of the key, which the key and the value follow.
const callHeader = 2

// Bytes is a call as it is sent.
func (c *Call) Bytes() ([]byte, error) {
	if len(c.Key) > 255 || callHeader+len(c.Key)+len(c.Value) > MaxCall {
		return nil, unix.E2BIG
	}
	b := append([]byte{byte(c.Op), byte(len(c.Key))}, c.Key...)
	return append(b, c.Value...), nil
}

// ParseCall reads what Bytes made.
func ParseCall(b []byte) (*Call, error) {
	if len(b) < callHeader || len(b) < callHeader+int(b[1]) {
		return nil, errors.New("a call that is cut off")
	}
	end := callHeader + int(b[1])
	c := &Call{Op: Op(b[0]), Key: string(b[callHeader:end]), Value: b[end:]}
	if c.Op < SetXattr || c.Op > ListXattr || strings.IndexByte(c.Key, 0) >= 0 {
		return nil, errors.New("a call that does not exist")
	}
	return c, nil
}

// Reply is the answer to a call: an error number, 0 for none, and a value.
func Reply(errno unix.Errno, value []byte) []byte {
	return append(binary.NativeEndian.AppendUint32(nil, uint32(errno)), value...)
}

// ParseReply reads what Reply made.
func ParseReply(b []byte) ([]byte, error) {
	if len(b) < 4 {
		return nil, unix.EPROTO
	}
	if errno := unix.Errno(binary.NativeEndian.Uint32(b)); errno != 0 {
		return nil, errno
	}
	return b[4:], nil
}
