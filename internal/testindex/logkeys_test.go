package testindex

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestEveryLogKeyIsInTheDocuments: whoever searches a log, or feeds one to a program, finds in docs/debugging.md
// what each key means, and a second key for the same thing has to be thought of first. Seen to fail with a key
// that the page does not list, and with a duration under a key that does not say its unit.
func TestEveryLogKeyIsInTheDocuments(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(root + "/docs/debugging.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| key | is |")
	if !found {
		t.Fatal("docs/debugging.md has no table of log keys")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	listed := map[string]bool{}
	for row := range strings.Lines(table) {
		first, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(first, -1) {
			if listed[m[1]] {
				t.Errorf("docs/debugging.md lists the log key %s twice", m[1])
			}
			listed[m[1]] = true
		}
	}
	used, durations := map[string]string{}, map[string]string{}
	for _, folder := range []string{"internal", "cmd"} {
		if err := readLogKeys(filepath.Join(root, folder), used, durations); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(used)) {
		if !listed[key] {
			t.Errorf("docs/debugging.md does not list the log key %s of %s", key, used[key])
		}
		delete(listed, key)
	}
	for key, where := range durations {
		if !strings.HasSuffix(key, "_ms") {
			t.Errorf("the log key %s of %s has milliseconds, and does not end with _ms", key, where)
		}
		delete(used, key)
	}
	for _, key := range slices.Sorted(maps.Keys(used)) {
		if strings.HasSuffix(key, "_ms") {
			t.Errorf("the log key %s of %s has something else than liblog.Milliseconds", key, used[key])
		}
	}
	for key := range listed {
		t.Errorf("docs/debugging.md lists the log key %s, which no line has", key)
	}
}

// readLogKeys finds the keys of log lines in the Go files below a folder, and where each is; and among them those
// whose value is made by liblog.Milliseconds.
func readLogKeys(folder string, used, durations map[string]string) error {
	files := token.NewFileSet()
	return filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				for _, key := range logKeys(call) {
					used[key] = files.Position(call.Pos()).String()
				}
				for i, arg := range call.Args[:max(len(call.Args)-1, 0)] {
					if key, ok := arg.(*ast.BasicLit); ok && key.Kind == token.STRING && isMilliseconds(call.Args[i+1]) {
						durations[strings.Trim(key.Value, `"`)] = files.Position(call.Pos()).String()
					}
				}
			}
			return true
		})
		return nil
	})
}

// isMilliseconds tells whether a value is made by liblog.Milliseconds.
func isMilliseconds(value ast.Expr) bool {
	call, ok := value.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && f.Sel.Name == "Milliseconds"
}

// logKeys are the keys of a call that logs, adds keys to a logger, or makes an attribute. Attributes among the others
// come one at a time.
func logKeys(call *ast.CallExpr) (keys []string) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	first, step := 1, 2 // after the message
	switch method.Sel.Name {
	case "Debug", "Info", "Warn", "Error":
	case "With":
		first = 0
	case "Any", "Bool", "Duration", "Float64", "Int", "Int64", "String", "Time", "Uint64":
		if of, ok := method.X.(*ast.Ident); !ok || of.Name != "slog" {
			return nil
		}
		first, step = 0, len(call.Args)+1
	default:
		return nil
	}
	for i := first; i < len(call.Args); {
		key, ok := call.Args[i].(*ast.BasicLit)
		if !ok || key.Kind != token.STRING {
			i++ // an attribute
			continue
		}
		if text, err := strconv.Unquote(key.Value); err == nil && regexp.MustCompile(`^[a-z_]+$`).MatchString(text) {
			keys = append(keys, text)
		}
		i += step
	}
	return keys
}
