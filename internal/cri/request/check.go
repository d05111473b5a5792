package request

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxProblems bounds how much an error says about an absurd request.
const maxProblems = 10

// Path names a field from the request on: config.mounts[2].host_path.
type Path string

// Field is a field of the message at p.
func (p Path) Field(name string) Path {
	if p == "" {
		return Path(name)
	}
	return p + "." + Path(name)
}

// At is an element of the list at p.
func (p Path) At(i int) Path { return p + Path("["+strconv.Itoa(i)+"]") }

// Key is an entry of the map at p.
func (p Path) Key(k string) Path { return p + Path("["+strconv.Quote(k)+"]") }

// Check collects what is wrong with a request. Translating functions take one, note problems in it, and return
// what they could make. The caller that made the Check must ask for Err before it uses the result: a request
// with a problem has been translated in part.
type Check struct {
	problems []string
	more     int
	enums    func(enum protoreflect.Name, value protoreflect.EnumNumber) bool
}

// Fail notes what is wrong with the field at p.
func (c *Check) Fail(p Path, format string, args ...any) {
	if len(c.problems) == maxProblems {
		c.more++
		return
	}
	c.problems = append(c.problems, string(p)+": "+fmt.Sprintf(format, args...))
}

// Err wraps errdefs.ErrInvalidArgument, and is nil if nothing is wrong.
func (c *Check) Err() error {
	if len(c.problems) == 0 {
		return nil
	}
	text := strings.Join(c.problems, "; ")
	if c.more > 0 {
		text += fmt.Sprintf("; and %d more", c.more)
	}
	return invalid{text}
}

type invalid struct{ text string }

func (e invalid) Error() string { return e.text }
func (e invalid) Unwrap() error { return errdefs.ErrInvalidArgument }

// New begins with what holds for every message: enums have a value that the interface names, no string holds
// a NUL byte (no path, argument or name of the kernel's can), all are UTF-8 (proto2 does not see to that, and a client
// of another API could not read a list that has one which is not), and nothing speaks of Windows.
func New(req proto.Message) *Check { return NewWith(req, nil) }

// NewWith is New for an interface that has more values of enums than the messages name: those for which enums is true.
func NewWith(req proto.Message, enums func(enum protoreflect.Name, value protoreflect.EnumNumber) bool) *Check {
	c := &Check{enums: enums}
	if m := req.ProtoReflect(); m.IsValid() {
		c.message("", m)
	} else {
		c.Fail("request", "is nil")
	}
	return c
}

// Message checks one more message, which is part of the request at p, as New does.
func (c *Check) Message(p Path, m proto.Message) { c.message(p, m.ProtoReflect()) }

func (c *Check) message(p Path, m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := p.Field(string(fd.Name()))
		switch {
		case fd.IsList():
			for i := range v.List().Len() {
				c.value(at.At(i), fd, v.List().Get(i))
			}
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				entry := at.Key(k.String())
				c.value(entry, fd.MapKey(), k.Value())
				c.value(entry, fd.MapValue(), v)
				return true
			})
		default:
			c.value(at, fd, v)
		}
		return true
	})
}

func (c *Check) value(p Path, fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch fd.Kind() {
	case protoreflect.EnumKind:
		if fd.Enum().Values().ByNumber(v.Enum()) == nil && (c.enums == nil || !c.enums(fd.Enum().Name(), v.Enum())) {
			c.Fail(p, "%d is no %s", v.Enum(), fd.Enum().Name())
		}
	case protoreflect.StringKind:
		if strings.ContainsRune(v.String(), 0) {
			c.Fail(p, "contains a NUL byte")
		}
		if !utf8.ValidString(v.String()) {
			c.Fail(p, "is not UTF-8")
		}
	case protoreflect.MessageKind, protoreflect.GroupKind:
		if strings.HasPrefix(string(fd.Message().Name()), "Windows") {
			c.Fail(p, "this node runs Linux")
			return
		}
		if m := v.Message(); m.IsValid() {
			c.message(p, m)
		}
	}
}

// ID checks that an identifier is there.
func (c *Check) ID(p Path, id string) {
	if id == "" {
		c.Fail(p, "is required")
	}
}
