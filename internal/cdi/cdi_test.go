package cdi

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/hostpath/mutetest"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T) (*Registry, string) {
	t.Helper()
	dir := t.TempDir()
	return Open([]string{dir}), dir
}

const plain = `{
  "cdiVersion": "0.6.0",
  "kind": "v.com/c",
  "devices": [
    {"name": "a", "containerEdits": {"env": ["A=1"]}},
    {"name": "b", "containerEdits": {"env": ["B=1"]}}
  ]
}`

func TestFilesAreReadAgainWhenTheyChange(t *testing.T) {
	r, dir := open(t)
	path := filepath.Join(dir, "v.json")
	for i := range 20 {
		// Of one size, and faster than clocks of file systems tick.
		write(t, path, strings.Replace(plain, "A=1", fmt.Sprintf("A=%02d", i), 1))
		spec := &specs.Spec{Process: &specs.Process{}}
		if _, err := r.Inject(spec, []string{"v.com/c=a"}); err != nil ||
			!slices.Equal(spec.Process.Env, []string{fmt.Sprintf("A=%02d", i)}) {
			t.Fatalf("%d: %v, %v", i, spec.Process.Env, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Inject(&specs.Spec{}, []string{"v.com/c=a"}); err == nil {
		t.Error("a device of a file that is gone")
	}
}

// TestADeviceWhoseFileSystemHangsHoldsUpNoOther: the library looks at a device's node on the host. Seen to fail where
// one injection at a time was made.
func TestADeviceWhoseFileSystemHangsHoldsUpNoOther(t *testing.T) {
	f := mutetest.Mount(t, t.TempDir())
	r, dir := open(t)
	write(t, filepath.Join(dir, "v.json"), strings.Replace(plain, `{"env": ["B=1"]}`,
		`{"deviceNodes": [{"path": "/dev/b", "hostPath": "`+filepath.Join(f.Dir, "b")+`"}]}`, 1))
	f.Mute()
	hangs := make(chan error, 1)
	go func() {
		_, err := r.Inject(&specs.Spec{}, []string{"v.com/c=b"})
		hangs <- err
	}()
	done := make(chan error, 1)
	go func() {
		for { // until it meets the other
			spec := &specs.Spec{Process: &specs.Process{}}
			_, err := r.Inject(spec, []string{"v.com/c=a"})
			devices, _ := r.Devices("v.com/c")
			if err == nil && len(devices) != 2 {
				err = fmt.Errorf("devices %v", devices)
			}
			if err != nil || f.Waits() {
				done <- err
				return
			}
		}
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case err := <-hangs:
		t.Errorf("a device of a file system that hangs: %v", err)
	case <-time.After(time.Minute):
		f.End()
		t.Error("another device waits for it")
	}
}

func TestAnUnknownDeviceNamesFileAndLine(t *testing.T) {
	r, dir := open(t)
	write(t, filepath.Join(dir, "v.json"), plain)
	_, err := r.Inject(&specs.Spec{}, []string{"v.com/c=a", "v.com/c=z", "other.com/c=x"})
	for _, says := range []string{"v.com/c=z: not on this node: " + dir + "/v.json:3 has a, b",
		"other.com/c=x: not on this node: no file in " + dir} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("no %q in %v", says, err)
		}
	}
}

func TestABrokenFileNamesTheLine(t *testing.T) {
	device := func(edits string) string {
		return "cdiVersion: 0.6.0\nkind: v.com/c\ndevices:\n- name: a\n  containerEdits:\n    env: [A=1]\n- name: b\n" +
			"  containerEdits:\n" + edits
	}
	for claim, c := range map[string]struct {
		text string
		line int
	}{
		"JSON that does not parse":    {"{\n  \"cdiVersion\": \"0.6.0\",\n  \"kind\": ]\n}", 3},
		"an unknown field":            {device("    devices: []\n"), 9},
		"a wrong type":                {device("    env:\n      A: 1\n"), 10},
		"a version that is not known": {"kind: v.com/c\ncdiVersion: 9.9.9\ndevices: []\n", 2},
		"a kind that is none":         {"cdiVersion: 0.6.0\nkind: gpu\ndevices: []\n", 2},
		"no devices":                  {"cdiVersion: 0.6.0\nkind: v.com/c\ndevices: []\n", 3},
		"a device without a name":     {strings.Replace(device("    env: [B=1]\n"), "name: b", "name: \"\"", 1), 7},
		"a device twice":              {strings.Replace(device("    env: [B=1]\n"), "name: b", "name: a", 1), 7},
		"a device without edits":      {device("    env: []\n"), 8},
		"a variable without =":        {device("    env:\n    - B=1\n    - B\n"), 11},
		"a device node without path":  {device("    deviceNodes:\n    - path: /dev/x\n    - type: c\n"), 11},
		"a hook of an unknown name":   {device("    hooks:\n    - hookName: sometimes\n      path: /x\n"), 10},
		"a mount that is empty": {device("    mounts:\n    - hostPath: /x\n      containerPath: /x\n    - null\n"),
			12},
		"a device node that is empty": {device("    deviceNodes:\n    - null\n"), 10},
		"a hook that is empty":        {device("    hooks: [null]\n"), 9},
		"a network device of nothing": {strings.Replace(device("    netDevices:\n    - null\n"), "0.6.0", "1.1.0", 1), 10},
		"a major number that is cut": {device("    deviceNodes:\n    - path: /dev/x\n      type: c\n      major: 4097\n"),
			10},
		"a minor number that is cut": {
			device("    deviceNodes:\n    - {path: /dev/x, type: c, major: 1, minor: 1048579}\n"), 10},
		"a negative number":        {device("    deviceNodes:\n    - {path: /dev/x, type: c, major: -1}\n"), 10},
		"a device of no user":      {device("    deviceNodes:\n    - {path: /dev/null, uid: 4294967295}\n"), 10},
		"a device of no group":     {device("    deviceNodes:\n    - {path: /dev/null, gid: 4294967295}\n"), 10},
		"a mount without a source": {device("    mounts:\n    - containerPath: /x\n"), 10},
		"edits of all devices, broken": {"cdiVersion: 0.6.0\nkind: v.com/c\ncontainerEdits:\n  env:\n  - X\ndevices:\n" +
			"- name: a\n  containerEdits:\n    env: [A=1]\n", 5},
	} {
		r, dir := open(t)
		path := filepath.Join(dir, "broken.yaml")
		if strings.HasPrefix(c.text, "{") {
			path = filepath.Join(dir, "broken.json")
		}
		write(t, path, c.text)
		_, err := r.Inject(&specs.Spec{}, []string{"v.com/c=b"})
		if want := fmt.Sprintf("%s:%d: ", path, c.line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: no %q in %v", claim, want, err)
		}
		if _, problems := r.Devices("v.com/c"); len(problems) != 1 {
			t.Errorf("%s: %q", claim, problems)
		}
	}
}

func TestADeviceOfTwoFilesNamesBoth(t *testing.T) {
	r, dir := open(t)
	write(t, filepath.Join(dir, "one.json"), plain)
	write(t, filepath.Join(dir, "two.json"), plain)
	_, err := r.Inject(&specs.Spec{}, []string{"v.com/c=b"})
	for _, want := range []string{dir + "/one.json:6: ", dir + "/two.json:6: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
}

func TestADeviceThatCannotBeInjectedNamesFileAndLine(t *testing.T) {
	r, dir := open(t)
	path := filepath.Join(dir, "v.yaml")
	write(t, path, "cdiVersion: 0.6.0\nkind: v.com/c\ndevices:\n- name: a\n  containerEdits:\n    deviceNodes:\n"+
		"    - path: /no/such/device\n")
	_, err := r.Inject(&specs.Spec{}, []string{"v.com/c=a"})
	if err == nil || !strings.Contains(err.Error(), "v.com/c=a ("+path+":4)") ||
		!strings.Contains(err.Error(), "/no/such/device") {
		t.Errorf("error %v", err)
	}
}

func TestDevicesOfAKind(t *testing.T) {
	r, dir := open(t)
	write(t, filepath.Join(dir, "v.json"), strings.Replace(plain, `"env": ["A=1"]`,
		`"deviceNodes": [{"path": "/dev/in", "hostPath": "/dev/null"}, {"path": "/dev/zero"}]`, 1))
	write(t, filepath.Join(dir, "w.json"), strings.Replace(plain, "v.com/c", "v.com/cc", 1))
	got, problems := r.Devices("v.com/c")
	if fmt.Sprint(got) != "[{a [/dev/null /dev/zero]} {b []}]" || len(problems) != 0 {
		t.Errorf("got %v, %v", got, problems)
	}
}

// A pipe among the files would keep the library, and with it every container with a device, waiting for a writer.
func TestWhatIsNoFileIsNotOpened(t *testing.T) {
	r, dir := open(t)
	write(t, filepath.Join(dir, "v.json"), plain)
	pipe := filepath.Join(dir, "pipe.json")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Inject(&specs.Spec{}, []string{"v.com/c=a"}); err == nil ||
		!strings.Contains(err.Error(), pipe+":1: it is no regular file") {
		t.Errorf("a pipe: %v", err)
	}
	if _, problems := r.Devices("v.com/c"); len(problems) != 1 {
		t.Errorf("a pipe: %q", problems)
	}
	if err := os.Remove(pipe); err != nil {
		t.Fatal(err)
	}
	huge := filepath.Join(dir, "huge.yaml")
	write(t, huge, "")
	if err := os.Truncate(huge, maxFile+1); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Inject(&specs.Spec{}, []string{"v.com/c=a"}); err == nil ||
		!strings.Contains(err.Error(), huge+":1: it has 16777217 bytes") {
		t.Errorf("a huge file: %v", err)
	}
	if err := os.Remove(huge); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Inject(&specs.Spec{}, []string{"v.com/c=a"}); err != nil {
		t.Errorf("without them: %v", err)
	}
}
