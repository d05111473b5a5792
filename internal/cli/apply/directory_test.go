package apply

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"berth/internal/manifest"
)

func podText(name, image string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  containers: [{name: c, image: '" + image +
		"', envFrom: [{configMapRef: {name: m, optional: true}}]}]\n"
}

const mapText = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: b}\n"

// files is a directory of manifests.
type files struct {
	t *testing.T
	*directory
}

func newFiles(t *testing.T) *files {
	return &files{t, &directory{path: t.TempDir(), options: manifest.Options{MayBeEmpty: true, RestartPolicy: "Always"}}}
}

func (f *files) write(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.path, name), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// see reads the directory, and compares the pods as name=image, and the names of the files that are wrong and frozen.
func (f *files) see(pods, wrong, frozen string) {
	f.t.Helper()
	r, _, err := f.read()
	if err != nil {
		f.t.Fatal(err)
	}
	var have, bad, stay []string
	for _, pod := range r.documents.Pods() {
		have = append(have, pod.Name+"="+pod.Spec.Containers[0].Image)
	}
	for name := range r.wrong {
		bad = append(bad, name)
	}
	for name := range r.frozen {
		stay = append(stay, name)
	}
	slices.Sort(bad)
	slices.Sort(stay)
	got := [3]string{strings.Join(have, " "), strings.Join(bad, " "), strings.Join(stay, " ")}
	if want := [3]string{pods, wrong, frozen}; got != want {
		f.t.Errorf("pods, wrong and frozen files are %q, want %q; %v", got, want, r.wrong)
	}
}

func TestAWrongFileIsTakenAsItWas(t *testing.T) {
	f := newFiles(t)
	f.see("", "", "")
	f.write("a.yaml", podText("a", "i:1"))
	f.write("b.yaml", "kind: Pod\n")
	f.write(".c.yaml", podText("c", "i:1"))
	f.write("d.yaml~", podText("d", "i:1"))
	f.see("a=i:1", "b.yaml", "b.yaml") // what b.yaml was before is not known
	f.write("b.yaml", podText("b", "i:1"))
	f.see("a=i:1 b=i:1", "", "")
	f.write("b.yaml", "")
	f.see("a=i:1 b=i:1", "b.yaml", "")
	f.write("b.yaml", podText("a", "i:2")) // the name of another
	f.see("a=i:1 b=i:1", "b.yaml", "")
	f.write("b.yaml", podText("b", "i:2"))
	f.see("a=i:1 b=i:2", "", "")
	if err := os.Remove(filepath.Join(f.path, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	f.see("b=i:2", "", "")
}

func TestPodsThatReferToAWrongFileStay(t *testing.T) {
	f := newFiles(t)
	needs := strings.Replace(podText("a", "i:1"), "optional: true", "optional: false", 1)
	f.write("a.yaml", needs)
	f.write("m.yaml", mapText)
	f.see("a=i:1", "", "")
	f.write("m.yaml", "kind: [")
	f.see("a=i:1", "m.yaml", "")
	if err := os.Remove(filepath.Join(f.path, "m.yaml")); err != nil {
		t.Fatal(err)
	}
	f.see("", "a.yaml", "a.yaml")
}

func TestADirectoryThatDidNotChangeIsNotReadAnew(t *testing.T) {
	f := newFiles(t)
	f.write("a.yaml", podText("a", "i:1"))
	first, changed, err := f.read()
	if err != nil || !changed {
		t.Fatal(changed, err)
	}
	if second, changed, err := f.read(); err != nil || changed || second != first {
		t.Errorf("changed: %v, %v", changed, err)
	}
	f.write("a.yaml", podText("a", "i:2"))
	if _, changed, err := f.read(); err != nil || !changed {
		t.Errorf("a change is not seen: %v", err)
	}
}

func TestEventsOfEditorsAreNone(t *testing.T) {
	for name, want := range map[string]bool{
		"/d/a.yaml": true, "/d/a.yml": true, "/d/a.json": true, "/d/..data": true,
		"/d/.a.yaml.swp": false, "/d/.#a.yaml": false, "/d/a.yaml~": false, "/d/4913": false, "/d/a.yaml.new": false,
	} {
		if got := concerns(fsnotify.Event{Name: name, Op: fsnotify.Create}); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestChangesAreToldOnceTheyHaveSettled(t *testing.T) {
	f := newFiles(t)
	changes, err := watch(t.Context(), f.path)
	if err != nil {
		t.Skip(err)
	}
	<-changes // the beginning
	begin := time.Now()
	for range 3 {
		f.write("a.yaml", "x")
		time.Sleep(settle / 3)
	}
	select {
	case <-changes:
		if took := time.Since(begin); took < settle*5/3 {
			t.Errorf("told after %v, in the middle of the changes", took)
		}
	case <-time.After(period / 2):
		t.Error("the change is not told")
	}
}

func TestAnEventIsALine(t *testing.T) {
	var out bytes.Buffer
	lines := &Lines{Out: &out}
	text := []byte("pod a: it is wrong:\n  this\n  and that\n")
	if n, err := lines.Write(text); n != len(text) || err != nil {
		t.Error(n, err)
	}
	if want := "pod a: it is wrong:; this; and that\n"; out.String() != want {
		t.Errorf("%q", out.String())
	}
}

// TestAFileWhoseNameIsNotUTF8IsWrong, and the others are taken. Seen to fail where its pods failed for ever, with an
// error that had no name.
func TestAFileWhoseNameIsNotUTF8IsWrong(t *testing.T) {
	f := newFiles(t)
	f.write("a.yaml", podText("a", "/one"))
	f.write("b\xff.yaml", podText("b", "/one"))
	f.see("a=/one", "b\xff.yaml", "b\xff.yaml")
	if says := f.reading.wrong["b\xff.yaml"].Error(); !strings.Contains(says, `"b\xff.yaml" is not UTF-8`) {
		t.Errorf("it is said %q", says)
	}
}
