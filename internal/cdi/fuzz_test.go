package cdi

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	raw "tags.cncf.io/container-device-interface/specs-go"
)

const everything = `cdiVersion: 1.1.0
kind: v.com/c
annotations: {a.b/c: d}
containerEdits:
  env: [ALL=1]
devices:
- name: a
  annotations: {a.b/c: d}
  containerEdits:
    env: [A=1]
    deviceNodes:
    - {path: /dev/a, hostPath: /dev/null, permissions: rw, uid: 5, gid: 6, fileMode: 0o600}
    - {path: /dev/b, type: b, major: 8, minor: 1}
    - {path: /dev/p, type: p}
    mounts:
    - {hostPath: /x, containerPath: /y, options: [ro], type: tmpfs}
    hooks:
    - {hookName: createRuntime, path: /bin/true, args: [a], env: [B=1], timeout: 5}
    netDevices:
    - {hostInterfaceName: eth9, name: eth0}
    additionalGids: [5]
    intelRdt: {closID: x}
`

// lineBreaks are those of YAML 1.1.
var lineBreaks = regexp.MustCompile("\r\n|[\r\n\u0085\u2028\u2029]")

// FuzzSpecification: whatever a file says, a container gets what the file names for the device that was asked for,
// and no other device node, mount, hook or network device; else the error has the file and a line of it.
func FuzzSpecification(f *testing.F) {
	f.Add(plain, true)
	f.Add(everything, false)
	f.Add("cdiVersion: 0.6.0\nkind: v.com/c\ndevices:\n- name: a\n  containerEdits:\n    deviceNodes: [null]\n", false)
	f.Add("cdiVersion: 0.6.0\nkind: v.com/c\n"+
		"devices: [&a {name: a, containerEdits: {mounts: [&b {hostPath: /x, containerPath: /x}, *b]}}, *a]\n", false)
	f.Add("{\"cdiVersion\": 1,\n\"kind\":", true)
	dir, err := os.MkdirTemp("/dev/shm", "berth-fuzz-cdi-")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { os.RemoveAll(dir) })
	position := regexp.MustCompile(`^` + regexp.QuoteMeta(dir) + `/v\.(json|yaml):(\d+): `)
	f.Fuzz(func(t *testing.T, text string, json bool) {
		file := filepath.Join(dir, "v.yaml")
		if json {
			file = filepath.Join(dir, "v.json")
		}
		write(t, file, text)
		defer os.Remove(file)
		setValidator()
		r := &Registry{dirs: []string{dir}}
		read, err := r.read()
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range read.broken() {
			at := position.FindStringSubmatch(problem)
			if at == nil {
				t.Fatalf("no file and line: %q", problem)
			}
			last := 1 + len(lineBreaks.FindAllString(text, -1))
			if strings.HasPrefix(text, "\xff\xfe") || strings.HasPrefix(text, "\xfe\xff") {
				last = 1 + len(text)/2 // UTF-16
			}
			if n, _ := strconv.Atoi(at[2]); n < 1 || n > last {
				t.Errorf("%q, of %q", problem, text)
			}
		}
		named, _ := cdi.ParseSpec([]byte(text))
		for _, qualified := range read.cache.ListDevices() {
			spec := &specs.Spec{
				Mounts: []specs.Mount{{Source: "own", Destination: "/own"}},
				Linux:  &specs.Linux{Devices: []specs.LinuxDevice{{Path: "/own"}}},
			}
			if _, err := r.Inject(spec, []string{qualified}); err != nil {
				if !strings.Contains(err.Error(), fmt.Sprintf("%s (%s:", qualified, file)) {
					t.Errorf("no file and line: %v", err)
				}
				continue
			}
			may := allowed(named, strings.TrimPrefix(qualified, named.Kind+"="))
			for _, got := range injected(spec) {
				if !slices.Contains(may, got) {
					t.Errorf("%s gives the container %q, and the file names %q", qualified, got, may)
				}
			}
			for _, d := range spec.Linux.Devices {
				if d.Major < 0 || d.Major > maxMajor || d.Minor < 0 || d.Minor > maxMinor {
					t.Errorf("device number %d:%d", d.Major, d.Minor)
				}
			}
		}
		if _, err := r.Inject(&specs.Spec{}, []string{"v.com/c=none"}); err == nil ||
			!strings.Contains(err.Error(), "v.com/c=none") {
			if read.cache.GetDevice("v.com/c=none") == nil {
				t.Errorf("a device that no file names: %v", err)
			}
		}
	})
}

// injected is what a specification has that reaches the host, in words.
func injected(spec *specs.Spec) (out []string) {
	for _, d := range spec.Linux.Devices {
		out = append(out, "device "+d.Path)
	}
	for _, m := range spec.Mounts {
		out = append(out, "mount "+m.Source+" at "+m.Destination)
	}
	for name := range spec.Linux.NetDevices {
		out = append(out, "network device "+name)
	}
	if h := spec.Hooks; h != nil {
		//lint:ignore SA1019 a file may name hooks of the old kind
		for _, hook := range slices.Concat(h.Prestart, h.CreateRuntime, h.CreateContainer, h.StartContainer,
			h.Poststart, h.Poststop) {
			out = append(out, "hook "+hook.Path)
		}
	}
	return out
}

// allowed is the same of what a file names for a device, and of what the container had before.
func allowed(file *raw.Spec, device string) []string {
	out := []string{"device /own", "mount own at /own"}
	edits := []*raw.ContainerEdits{&file.ContainerEdits}
	for i := range file.Devices {
		if file.Devices[i].Name == device {
			edits = append(edits, &file.Devices[i].ContainerEdits)
		}
	}
	for _, e := range edits {
		for _, d := range e.DeviceNodes {
			out = append(out, "device "+d.Path)
		}
		for _, m := range e.Mounts {
			out = append(out, "mount "+m.HostPath+" at "+m.ContainerPath)
		}
		for _, n := range e.NetDevices {
			out = append(out, "network device "+n.HostInterfaceName)
		}
		for _, h := range e.Hooks {
			out = append(out, "hook "+h.Path)
		}
	}
	return out
}
