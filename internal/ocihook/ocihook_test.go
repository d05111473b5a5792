package ocihook

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// one is the text of a hook: its when, and its stages.
func one(args, when string, stages ...string) string {
	return fmt.Sprintf(`{"version": "1.0.0", "hook": {"path": "/bin/true", "args": ["true", %q]}, "when": {%s},
		"stages": ["%s"]}`, args, when, strings.Join(stages, `","`))
}

// injected are the last arguments of the hooks of a stage.
func injected(hooks []specs.Hook) (out []string) {
	for _, h := range hooks {
		out = append(out, h.Args[len(h.Args)-1])
	}
	return out
}

func TestHooksAreForTheContainersThatTheyName(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	write(t, first+"/20-all.json", one("all", `"always": true`, "createRuntime", "poststop"))
	write(t, first+"/10-Annotated.json", one("annotated", `"annotations": {"^v\\.com/gpu$": "^yes$"}`, "prestart"))
	write(t, first+"/30-command.json", one("command", `"commands": ["/sh$"]`, "startContainer"))
	write(t, first+"/40-mounts.json", one("mounts", `"hasBindMounts": true`, "poststart"))
	write(t, first+"/50-replaced.json", one("replaced", `"always": true`, "createContainer"))
	write(t, second+"/50-replaced.json", one("other", `"always": true`, "createContainer"))
	write(t, second+"/60-old.json",
		`{"hook": "/bin/true", "arguments": ["old"], "stages": ["prestart"], "cmds": ["^/bin/sh$"]}`)
	write(t, second+"/readme.txt", "no hook")
	spec := &specs.Spec{Process: &specs.Process{Args: []string{"/bin/sh", "-c", "true"}}}
	spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Args: []string{"device"}}}}
	dirs := []string{first, filepath.Join(first, "none"), second}
	if err := Inject(spec, dirs, map[string]string{"v.com/gpu": "yes"}, true); err != nil {
		t.Fatal(err)
	}
	for stage, c := range map[string]struct {
		got  []specs.Hook
		want string
	}{
		"createRuntime":   {spec.Hooks.CreateRuntime, "device annotated all old"},
		"createContainer": {spec.Hooks.CreateContainer, "other"},
		"startContainer":  {spec.Hooks.StartContainer, "command"},
		"poststart":       {spec.Hooks.Poststart, "mounts"},
		"poststop":        {spec.Hooks.Poststop, "all"},
	} {
		if got := strings.Join(injected(c.got), " "); got != c.want {
			t.Errorf("%s: %q, want %q", stage, got, c.want)
		}
	}
	plain := &specs.Spec{Process: &specs.Process{Args: []string{"sleep"}}}
	if err := Inject(plain, dirs, map[string]string{"v.com/gpu": "no"}, false); err != nil {
		t.Fatal(err)
	}
	if got := injected(plain.Hooks.CreateRuntime); !slices.Equal(got, []string{"all"}) ||
		len(plain.Hooks.StartContainer)+len(plain.Hooks.Poststart) > 0 {
		t.Errorf("a container that three hooks are not for: %+v", plain.Hooks)
	}
}

// TestAWrongFileGivesNoHooks: the error names the file, and the specification is as it was.
func TestAWrongFileGivesNoHooks(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no JSON":       {"{", "unexpected end"},
		"a version":     {`{"version": "9"}`, "version"},
		"no program":    {strings.Replace(one("a", `"always": true`, "prestart"), "/bin/true", "/no/such", 1), "/no/such"},
		"a stage":       {one("a", `"always": true`, "never"), "never"},
		"a pattern":     {one("a", `"commands": ["("]`, "prestart"), "missing closing"},
		"no conditions": {`{"version": "1.0.0", "hook": {"path": "/bin/true"}}`, "stages"},
	} {
		dir := t.TempDir()
		write(t, dir+"/a.json", one("good", `"always": true`, "prestart"))
		write(t, dir+"/b.json", c.text)
		spec := &specs.Spec{Process: &specs.Process{Args: []string{"sh"}}}
		err := Inject(spec, []string{dir}, nil, false)
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), dir+"/b.json") ||
			!strings.Contains(err.Error(), c.want) || spec.Hooks != nil {
			t.Errorf("%s: %v, %+v", name, err, spec.Hooks)
		}
		if err := Check([]string{dir}); err == nil {
			t.Errorf("%s is not found by a check", name)
		}
	}
	if err := Check([]string{"/no/such/dir"}); err != nil {
		t.Errorf("a directory that is not there: %v", err)
	}
}
