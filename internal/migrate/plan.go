package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"berth/internal/config"
)

// Fate says whether a key of the other runtime could be translated.
type Fate string

// Fates.
const (
	Translated Fate = "translated"
	Needless   Fate = "needless" // Berth needs no such key
	Left       Fate = "left"     // a person has to decide
)

// Note is the fate of a key, or of a file.
type Note struct {
	Key  string `json:"key"` // with its tables, as the other runtime has it; or a path
	Fate Fate   `json:"fate"`
	Text string `json:"text"` // the key of Berth, or the reason
}

// File is a file that is to be written.
type File struct {
	Path string
	Mode fs.FileMode
	Data []byte

	CopyOf string // the file that it is a copy of; "": none
}

// Plan is a translated configuration.
type Plan struct {
	Runtime string   // Containerd or CRIO
	Read    []string // files
	Files   []File   // the first is Berth's drop-in
	Notes   []Note
	Sandbox string // the image of sandboxes, which Berth needs not
	Store   string // the directory of the other runtime's images
	Socket  string // of the other runtime
	// MoreStores are further directories with images, of CRI-O.
	MoreStores []string

	settings map[string]any
	dir      string // of Berth's configuration
}

func newPlan(runtime, dir string) *Plan {
	return &Plan{Runtime: runtime, settings: map[string]any{}, dir: dir}
}

// set gives a key of Berth a value, for a key of the other runtime.
func (p *Plan) set(from, key string, value any) {
	table, names := p.settings, strings.Split(key, "\x00")
	if len(names) == 1 {
		names = strings.Split(key, ".")
	}
	for _, name := range names[:len(names)-1] {
		inner, ok := table[name].(map[string]any)
		if !ok {
			inner = map[string]any{}
			table[name] = inner
		}
		table = inner
	}
	table[names[len(names)-1]] = value
	p.note(from, Translated, fmt.Sprintf("%s = %v", strings.Join(names, "."), value))
}

// builtin makes a handler Berth's own, whatever another file of the configuration has made it.
func (p *Plan) builtin(from, name string) {
	p.set(from, "runtimes\x00"+name+"\x00type", config.RuntimeBuiltin)
	handler := table(table(p.settings["runtimes"])[name])
	handler["path"], handler["root"] = "", ""
}

func (p *Plan) note(key string, fate Fate, text string) {
	p.Notes = append(p.Notes, Note{key, fate, text})
}

func (p *Plan) left(key, format string, args ...any) { p.note(key, Left, fmt.Sprintf(format, args...)) }

// look says of a key that is not translated what docs/migrating.md says of it. An empty value asks for nothing, unless
// Berth does what it turns off.
func (p *Plan) look(path, key string, value any) {
	if p.unlike(path, key, value) || empty(value) {
		return
	}
	t, known := twins()[p.Runtime][key]
	switch {
	case !known:
		p.left(path, "Berth does not know this key")
	case t.needless():
		p.note(path, Needless, t.reason())
	default:
		p.left(path, "%s", t.reason())
	}
}

// ID is the other runtime's name as commands and files have it.
func (p *Plan) ID() string { return strings.ToLower(strings.ReplaceAll(p.Runtime, "-", "")) }

// Pin has images pinned that were pinned in the other runtime.
func (p *Plan) Pin(images []*Image) {
	var pinned []string
	if list, ok := table(p.settings["image"])["pinned"].([]string); ok {
		pinned = slices.Clone(list)
	}
	n := len(pinned)
	for _, img := range images {
		for _, name := range img.Names {
			if img.Pinned && !strings.Contains(name, "@") && !slices.Contains(pinned, name) {
				pinned = append(pinned, name)
			}
		}
	}
	if len(pinned) > n {
		p.set("images with the label "+labelPinned, "image.pinned", pinned)
	}
}

// Finish makes the drop-in of the settings, and compares it with the rest of Berth's configuration.
func (p *Plan) Finish() (*config.Loaded, error) {
	if err := p.dropIn(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "berth-migrate-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.Mkdir(filepath.Join(dir, config.DropIns), 0o700); err != nil {
		return nil, err
	}
	old, err := filepath.Glob(filepath.Join(p.dir, config.DropIns, "*.toml"))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"config.toml": nil}
	for _, path := range append(old, filepath.Join(p.dir, "config.toml")) {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(p.dir, path)
		if err != nil {
			return nil, err
		}
		files[name] = data
	}
	files[filepath.Join(config.DropIns, filepath.Base(p.Files[0].Path))] = p.Files[0].Data
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return nil, err
		}
	}
	loaded, err := config.Load(config.Sources{File: filepath.Join(dir, "config.toml")})
	if err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), dir, p.dir))
	}
	return loaded, nil
}

// dropIn puts the file of the settings before the others.
func (p *Plan) dropIn() error {
	name := p.ID()
	var out bytes.Buffer
	fmt.Fprintf(&out, "# Made by `berth migrate %s` from:\n", name)
	for _, path := range p.Read {
		fmt.Fprintf(&out, "# - %s\n", path)
	}
	if len(p.Read) == 0 {
		fmt.Fprintf(&out, "# - the defaults of %s, which has no configuration here\n", p.Runtime)
	}
	out.WriteString("# `berth migrate " + name + " --revert` removes it.\n\n")
	encoder := toml.NewEncoder(&out)
	encoder.SetIndentTables(false)
	if err := encoder.Encode(p.settings); err != nil {
		return err
	}
	path := filepath.Join(p.dir, config.DropIns, "50-"+name+".toml")
	p.Files = slices.Insert(p.Files, 0, File{Path: path, Mode: 0o644, Data: out.Bytes()})
	return nil
}

// Report is all notes as a text.
func (p *Plan) Report() []byte {
	var out bytes.Buffer
	for _, part := range []struct {
		fate Fate
		head string
	}{
		{Left, "Not translated: look at these."},
		{Translated, "Translated."},
		{Needless, "Needless: what these keys are for is as they want it, or has no meaning in Berth."},
	} {
		fmt.Fprintf(&out, "%s\n\n", part.head)
		for _, n := range p.Notes {
			if n.Fate == part.fate {
				fmt.Fprintf(&out, "  %s\n      %s\n", n.Key, n.Text)
			}
		}
		out.WriteString("\n")
	}
	return out.Bytes()
}

// merge puts a table over another one, as containerd does: tables are merged, other values replaced, but for empty
// ones.
func merge(to, from map[string]any) {
	for key, value := range from {
		inner, isTable := value.(map[string]any)
		if before, ok := to[key].(map[string]any); ok && isTable {
			merge(before, inner)
			continue
		}
		if _, there := to[key]; there && empty(value) {
			continue
		}
		to[key] = value
	}
}

// empty is whether a value asks for nothing.
func empty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case bool:
		return !v
	case int64:
		return v == 0
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

// keys are those of a table in their order.
func keys(table map[string]any) []string { return slices.Sorted(maps.Keys(table)) }

func texts(value any) []string {
	list, _ := value.([]any)
	var out []string
	for _, item := range list {
		if text, ok := item.(string); ok {
			out = append(out, text)
		}
	}
	return out
}

func table(value any) map[string]any {
	t, _ := value.(map[string]any)
	return t
}

func text(value any) string {
	t, _ := value.(string)
	return t
}

// dotted joins the names of a key, with quotes around those that need them.
func dotted(names ...string) string {
	out := make([]string, len(names))
	for i, name := range names {
		if strings.ContainsAny(name, "./:* ") {
			name = "'" + name + "'"
		}
		out[i] = name
	}
	return strings.Join(out, ".")
}
