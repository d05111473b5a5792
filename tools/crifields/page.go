package crifields

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	_ "k8s.io/cri-api/pkg/apis/runtime/v1" // the descriptors
)

// root is the repository, seen from this directory, in which go generate and go test run.
const root = "../.."

// services are the interface's, in order.
func services() ([]protoreflect.ServiceDescriptor, error) {
	var out []protoreflect.ServiceDescriptor
	for _, name := range []protoreflect.FullName{"runtime.v1.RuntimeService", "runtime.v1.ImageService"} {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			return nil, err
		}
		out = append(out, d.(protoreflect.ServiceDescriptor))
	}
	return out, nil
}

// messages are the messages that requests are made of, each once, in the order in which calls use them.
func messages(list []protoreflect.ServiceDescriptor) []protoreflect.MessageDescriptor {
	var out []protoreflect.MessageDescriptor
	seen := map[protoreflect.FullName]bool{}
	var visit func(protoreflect.MessageDescriptor)
	visit = func(m protoreflect.MessageDescriptor) {
		if seen[m.FullName()] {
			return
		}
		seen[m.FullName()] = true
		if !m.IsMapEntry() && m.Fields().Len() > 0 {
			out = append(out, m)
		}
		for i := range m.Fields().Len() {
			if inner := m.Fields().Get(i).Message(); inner != nil {
				visit(inner)
			}
		}
	}
	for _, s := range list {
		for i := range s.Methods().Len() {
			visit(s.Methods().Get(i).Input())
		}
	}
	return out
}

// ofField is what the list says of a field.
func ofField(f protoreflect.FieldDescriptor) (verdict, bool) {
	if strings.HasPrefix(string(f.Parent().Name()), "Windows") {
		return refused(windows+", wherever the message is", refusals), true
	}
	v, ok := fields[string(f.Parent().Name())][string(f.Name())]
	return v, ok
}

// page is docs/cri-v1.md. It fails on a call or a field that the list does not know. where tells in which folder
// a test is.
func page(where func(test string) (string, error)) (string, error) {
	list, err := services()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(`# CRI v1, call by call and field by field

Made by ` + "`go generate ./tools/crifields`" + ` from the descriptors of k8s.io/cri-api; do not edit.

A field **works** as the interface says, as the tests after it show; or a request that has it is **refused**
with the error that is given; or it has **no meaning** to this runtime on Linux. In every request an enum whose value
the interface does not name, a number out of its range and a string with a NUL byte get InvalidArgument with the field's
path.

`)
	rows := &rows{b: &b, where: where, count: map[string]int{}}
	line := rows.add
	for _, s := range list {
		fmt.Fprintf(&b, "## %s\n\n| call | answer | state | shown by |\n|---|---|---|---|\n", s.Name())
		for i := range s.Methods().Len() {
			m := s.Methods().Get(i)
			v, ok := calls[string(m.Name())]
			if !ok {
				return "", fmt.Errorf("the list does not know the call %s", m.Name())
			}
			kind := "one"
			if m.IsStreamingServer() {
				kind = "stream"
			}
			if err := line(string(m.Name()), kind, v); err != nil {
				return "", err
			}
		}
		b.WriteString("\n")
	}
	b.WriteString("## Fields of requests\n")
	for _, m := range messages(list) {
		fmt.Fprintf(&b, "\n### %s\n\n| field | type | state | shown by |\n|---|---|---|---|\n", m.Name())
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			v, ok := ofField(f)
			if !ok {
				return "", fmt.Errorf("the list does not know the field %s.%s", m.Name(), f.Name())
			}
			if err := line(string(f.Name()), kindOf(f), v); err != nil {
				return "", err
			}
		}
	}
	rows.total()
	return b.String(), nil
}

// rows writes the rows of tables.
type rows struct {
	b     *strings.Builder
	where func(test string) (string, error)
	count map[string]int // by state
}

// total ends a page or section with its numbers.
func (r *rows) total() {
	fmt.Fprintf(r.b, "\nCalls and fields together: %d work, %d are refused, %d have no meaning.\n",
		r.count[stateWorks], r.count[stateRefused], r.count[stateMeaningless])
}

func (r *rows) add(name, kind string, v verdict) error {
	r.count[v.state]++
	var shown []string
	for _, test := range v.tests {
		dir, err := r.where(test)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		shown = append(shown, fmt.Sprintf("[%s](../%s)", test[strings.IndexByte(test, ':')+1:], dir))
	}
	says := strings.Join(shown, ", ")
	if v.says != "" {
		says = strings.TrimSuffix(v.says+"; "+says, "; ")
	}
	fmt.Fprintf(r.b, "| %s | %s | %s | %s |\n", name, kind, v.state, says)
	return nil
}

func kindOf(f protoreflect.FieldDescriptor) string {
	name := func(f protoreflect.FieldDescriptor) string {
		switch {
		case f.Message() != nil:
			return string(f.Message().Name())
		case f.Enum() != nil:
			return string(f.Enum().Name())
		}
		return f.Kind().String()
	}
	switch {
	case f.IsMap():
		return fmt.Sprintf("map of %s to %s", name(f.MapKey()), name(f.MapValue()))
	case f.IsList():
		return "list of " + name(f)
	}
	return name(f)
}

// unknown are the entries of the list that the interface does not have.
func unknown() ([]string, error) {
	list, err := services()
	if err != nil {
		return nil, err
	}
	var out []string
	known := map[string]bool{}
	for _, s := range list {
		for i := range s.Methods().Len() {
			known[string(s.Methods().Get(i).Name())] = true
		}
	}
	for _, m := range messages(list) {
		for i := range m.Fields().Len() {
			known[string(m.Name())+"."+string(m.Fields().Get(i).Name())] = true
		}
	}
	for call := range calls {
		if !known[call] {
			out = append(out, call)
		}
	}
	for message, of := range fields {
		for field := range of {
			if name := message + "." + field; !known[name] {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}
