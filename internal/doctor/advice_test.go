package doctor

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// command is the beginning of a command line that mends something, or that shows what is wrong.
var command = regexp.MustCompile(`\b(apt-get install|berth (doctor|pods|rmi)|berthd config|cat /|chmod o|dmesg -|` +
	`du -|findmnt -?[T/]|grep |journalctl -u|ls -|make install|modprobe |mount -|sudo berth|sysctl -w|` +
	`systemctl (disable|mask|reload|restart|start)|ulimit -|uname -)|\x00 check`)

// source is what a test reads of the package's own source.
type source struct {
	set       *token.FileSet
	constants map[string]ast.Expr      // of the package
	functions map[string]*ast.FuncDecl // by name
}

func readSource(t *testing.T) *source {
	t.Helper()
	s := &source{token.NewFileSet(), map[string]ast.Expr{}, map[string]*ast.FuncDecl{}}
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(s.set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, declared := range file.Decls {
			switch declared := declared.(type) {
			case *ast.FuncDecl:
				s.functions[declared.Name.Name] = declared
			case *ast.GenDecl:
				values(declared, func(name string, value ast.Expr) { s.constants[name] = value })
			}
		}
	}
	return s
}

// values tells of each value that is given to a name.
func values(in ast.Node, tell func(name string, value ast.Expr)) {
	ast.Inspect(in, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i := range min(len(n.Names), len(n.Values)) {
				tell(n.Names[i].Name, n.Values[i])
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if name, ok := left.(*ast.Ident); ok && len(n.Lhs) == len(n.Rhs) {
					tell(name.Name, n.Rhs[i])
				}
			}
		}
		return true
	})
}

// words are the literals of an expression in a function, and those of the names in it; \x00 stands for what is put
// between them. depth is how far names are followed.
func (s *source) words(n ast.Node, in *ast.FuncDecl, depth int) string {
	var text strings.Builder
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			text.WriteString(strings.Trim(n.Value, "`\"") + "\x00")
		case *ast.Ident:
			if depth == 0 {
				return true
			}
			values(in, func(name string, value ast.Expr) {
				if name == n.Name {
					text.WriteString(s.words(value, in, depth-1))
				}
			})
			if value := s.constants[n.Name]; value != nil {
				text.WriteString(s.words(value, in, depth-1))
			}
			if called := s.functions[n.Name]; called != nil {
				text.WriteString(s.words(called.Body, called, depth-1))
			}
		}
		return true
	})
	return text.String()
}

// TestEachProblemHasACommand: the advice of each finding that is not good has a command line in it. The calls are read
// from the source, since most of what they are about cannot be brought about in a test. Seen to fail with an empty
// advice, and with one of words alone.
func TestEachProblemHasACommand(t *testing.T) {
	s := readSource(t)
	calls := 0
	for _, function := range s.functions {
		ast.Inspect(function, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			name, ok := call.Fun.(*ast.Ident)
			if !ok || name.Name != "poor" && name.Name != "bad" {
				return true
			}
			calls++
			if text := s.words(call.Args[1], function, 2); !command.MatchString(text) {
				t.Errorf("%s: the advice names no command: %q", s.set.Position(call.Pos()), text)
			}
			return true
		})
	}
	if calls < 30 {
		t.Errorf("only %d calls were found", calls)
	}
}
