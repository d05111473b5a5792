package v1

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxProblems bounds how much an error says about an absurd request.
const maxProblems = 10

// path names a field from the request on: config.mounts[2].host_path.
type path string

func (p path) field(name string) path {
	if p == "" {
		return path(name)
	}
	return p + "." + path(name)
}

func (p path) at(i int) path { return p + path("["+strconv.Itoa(i)+"]") }

func (p path) key(k string) path { return p + path("["+strconv.Quote(k)+"]") }

// check collects what is wrong with a request. Translating functions take one, note problems in it, and return what they
// could make; whoever made the check asks for err before using that.
type check struct {
	problems []string
	more     int
}

func (c *check) fail(p path, format string, args ...any) {
	if len(c.problems) == maxProblems {
		c.more++
		return
	}
	c.problems = append(c.problems, string(p)+": "+fmt.Sprintf(format, args...))
}

// err wraps errdefs.ErrInvalidArgument, and is nil if nothing is wrong.
func (c *check) err() error {
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

// newCheck begins with what holds for every message: enums have a value that the interface names, no string holds a NUL
// byte (no path, argument or name of the kernel's can), and nothing speaks of Windows.
func newCheck(req proto.Message) *check {
	c := &check{}
	if m := req.ProtoReflect(); m.IsValid() {
		c.message("", m)
	} else {
		c.fail("request", "is nil")
	}
	return c
}

// checkOnly is for requests that hold nothing but plain fields.
func checkOnly(req proto.Message) error { return newCheck(req).err() }

func (c *check) message(p path, m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := p.field(string(fd.Name()))
		switch {
		case fd.IsList():
			for i := range v.List().Len() {
				c.value(at.at(i), fd, v.List().Get(i))
			}
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				entry := at.key(k.String())
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

func (c *check) value(p path, fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch fd.Kind() {
	case protoreflect.EnumKind:
		if fd.Enum().Values().ByNumber(v.Enum()) == nil {
			c.fail(p, "%d is no %s", v.Enum(), fd.Enum().Name())
		}
	case protoreflect.StringKind:
		if strings.ContainsRune(v.String(), 0) {
			c.fail(p, "contains a NUL byte")
		}
	case protoreflect.MessageKind, protoreflect.GroupKind:
		if strings.HasPrefix(string(fd.Message().Name()), "Windows") {
			c.fail(p, "this node runs Linux")
			return
		}
		if m := v.Message(); m.IsValid() {
			c.message(p, m)
		}
	}
}

// id checks that an identifier is there.
func (c *check) id(p path, id string) {
	if id == "" {
		c.fail(p, "is required")
	}
}
