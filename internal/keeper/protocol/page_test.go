package protocol

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	api "berth/api/keeper"
)

// TestThePageNamesEveryCall fails when docs/keeper-protocol.md does not name a call, a field of a message,
// a kind of packet or a role of a descriptor. It was seen to fail with a row of the page taken out.
func TestThePageNamesEveryCall(t *testing.T) {
	b, err := os.ReadFile("../../../docs/keeper-protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	named := func(what, name string) {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/keeper-protocol.md does not name the %s `%s`", what, name)
		}
	}
	file := api.File_keeper_proto
	for i := range file.Services().Len() {
		methods := file.Services().Get(i).Methods()
		for j := range methods.Len() {
			named("call", string(methods.Get(j).Name()))
		}
	}
	for i := range file.Messages().Len() {
		m := file.Messages().Get(i)
		each(m.Fields(), func(f protoreflect.FieldDescriptor) {
			named(fmt.Sprintf("field of %s", m.Name()), string(f.Name()))
		})
	}
	for _, value := range constants(t, "packet.go", "Kind", "Role") {
		named("kind or role", value)
	}
}

func each(fields protoreflect.FieldDescriptors, fn func(protoreflect.FieldDescriptor)) {
	for i := range fields.Len() {
		fn(fields.Get(i))
	}
}

// constants are the values of a file's string constants of some types.
func constants(t *testing.T, file string, types ...string) (values []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Type == nil {
			return true
		}
		typ, ok := spec.Type.(*ast.Ident)
		if !ok || !strings.Contains(" "+strings.Join(types, " ")+" ", " "+typ.Name+" ") {
			return true
		}
		for _, v := range spec.Values {
			if lit, ok := v.(*ast.BasicLit); ok {
				s, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				values = append(values, s)
			}
		}
		return true
	})
	if len(values) < 10 {
		t.Fatalf("%s has few constants: %q", file, values)
	}
	return values
}
