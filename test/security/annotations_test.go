package security

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	rt "berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// Attacks by texts that are kept with pods and images: annotations, labels, and variables that programs of the host
// read.

// orders are annotations by which runtimes have been told to do something on the host.
var orders = map[string]string{
	"org.systemd.property.ExecStopPost":                 "[('/bin/touch', ['touch', '/tmp/owned'], false)]",
	"org.systemd.property.ExecStartPre":                 "[('/bin/touch', ['touch', '/tmp/owned'], false)]",
	"org.systemd.property.DevicePolicy":                 "'auto'",
	"org.systemd.property.CollectMode":                  "'inactive-or-failed'",
	"org.criu.config":                                   "/tmp/evil.conf",
	"run.oci.hooks.stdout":                              "/tmp/owned",
	"run.oci.seccomp.receiver":                          "/tmp/evil.sock",
	"run.oci.seccomp.plugins":                           "/tmp/evil.so",
	"run.oci.delegate-cgroup":                           "x",
	"run.oci.handler":                                   "krun",
	"run.oci.pidfd_receiver":                            "/tmp/owned",
	"io.katacontainers.config.hypervisor.path":          "/tmp/evil",
	"io.kubernetes.cri-o.userns-mode":                   "auto",
	"io.kubernetes.cri-o.UnifiedCgroup.c":               "memory.max=max",
	"io.kubernetes.cri-o.Devices":                       "/dev/kmsg",
	"io.kubernetes.cri-o.TrySkipVolumeSELinuxLabel":     "true",
	"io.containerd.cri.log-uri":                         "binary:///bin/touch?/tmp/owned",
	"containerd.io/restart.loguri":                      "binary:///bin/touch?/tmp/owned",
	"cpu-load-balancing.crio.io":                        "disable",
	"io.podman.annotations.userns":                      "host",
	"io.podman.annotations.volumes-from":                "all",
	"org.criu.checkpoint.container.name":                "x",
	"cdi.k8s.io/evil":                                   "evil.test/device=all",
	"bundle":                                            "/tmp",
	"org.opencontainers.image.stopSignal":               "KILL",
	"io.kubernetes.cri.container-type":                  "sandbox",
	"io.kubernetes.cri.sandbox-id":                      "another",
	"io.kubernetes.cri-o.ContainerType":                 "sandbox",
	"com.github.containers.toolbox":                     "true",
	"io.containers.capabilities":                        "SYS_ADMIN",
	"io.kubernetes.container.seccomp.security.alpha":    "unconfined",
	"container.apparmor.security.beta.kubernetes.io/c1": "unconfined",
}

// commands are those of orders that change what a runtime does as root; others may be passed on as what they are,
// texts.
func isOrder(key string) bool {
	for _, prefix := range []string{"org.systemd.property.",
		"org.criu.", "run.oci.", "io.katacontainers.", "cdi.k8s.io/", "bundle"} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

// specOf is the specification of a container, as the keeper has it.
func specOf(t *testing.T, c *nodetest.Container) *specs.Spec {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(c.Pod.Node.Root, "containers", c.ID, "spec.json"))
	if err != nil {
		t.Fatal(err)
	}
	spec := &specs.Spec{}
	if err := json.Unmarshal(data, spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

// CVE-2024-3154 (CRI-O): an annotation of a pod, org.systemd.property.*, was passed on to the runtime, which set
// that property of the pod's systemd unit: for one such as ExecStopPost systemd runs a program on the host, as root.
// CVE-2023-6476 is an annotation by which a pod had any amount of memory.
//
// The handlers of this test pass on whatever pods say. Seen to succeed on the build that passed on what a pattern
// matches.
func TestCVE_2024_3154_AnAnnotationCommandsTheRuntime(t *testing.T) {
	n := nodetest.Shared(t)
	annotate := func(c *cri.PodSandboxConfig) { c.Annotations = orders }
	for _, handler := range []string{"", "annotated", "runc-annotated", "crun-annotated"} {
		t.Run("handler "+handler, func(t *testing.T) {
			if name, ok := strings.CutSuffix(handler, "-annotated"); ok {
				nodetest.Handler(t, n, name)
			}
			p := nodetest.RunPodHandler(t, n, handler, annotate)
			name := func(c *cri.ContainerConfig) { c.Metadata.Name = "c" }
			evil := p.Create(name, func(c *cri.ContainerConfig) {
				c.Annotations = maps.Clone(orders)
				delete(c.Annotations, "cdi.k8s.io/evil") // a kubelet asks for devices by those of a container
			})
			plain := nodetest.RunPodHandler(t, n, handler).Create(name)
			evil.Start()
			got, want := specOf(t, evil), specOf(t, plain)
			for key := range got.Annotations {
				// With the cgroup driver systemd, Berth has properties of its own.
				if isOrder(key) && got.Annotations[key] != want.Annotations[key] {
					t.Errorf("the runtime is given the annotation %s", key)
				}
			}
			for _, key := range []string{"io.kubernetes.cri.container-type", "io.kubernetes.cri.sandbox-id"} {
				if got.Annotations[key] == orders[key] {
					t.Errorf("the annotation %s of the runtime's own is the pod's", key)
				}
			}
			if handler == "" && len(got.Annotations) != len(want.Annotations) {
				t.Errorf("a handler without annotations passes on %v", got.Annotations)
			}
			if !reflect.DeepEqual(got.Linux.Resources, want.Linux.Resources) {
				t.Errorf("by its annotations it has the limits %+v in place of %+v", got.Linux.Resources, want.Linux.Resources)
			}
			if len(got.Linux.Devices) != len(want.Linux.Devices) ||
				!reflect.DeepEqual(got.Process.Capabilities, want.Process.Capabilities) ||
				len(got.Linux.Namespaces) != len(want.Linux.Namespaces) || got.Hooks != nil {
				t.Error("by its annotations it has more rights")
			}
			if bundle, err := os.ReadFile(filepath.Join(n.State, "keeper", "bundles", evil.ID, "config.json")); err == nil {
				for key := range orders {
					if isOrder(key) && want.Annotations[key] == "" && strings.Contains(string(bundle), fmt.Sprintf("%q:", key)) {
						t.Errorf("the bundle has the annotation %s", key)
					}
				}
			} else if strings.Contains(handler, "-") {
				t.Errorf("the bundle of an OCI runtime: %v", err)
			}
			evil.Remove()
		})
	}
	if _, err := os.Stat("/tmp/owned"); err == nil {
		t.Error("the host has run a program of the pod's choice, or written its file")
	}
}

// CVE-2023-6476, by Berth's own annotations: they hold only where the handler allows each.
//
// Seen to fail with the list of what is allowed ignored in Apply of package annotation.
func TestCVE_2023_6476_AnAnnotationLiftsALimit(t *testing.T) {
	n := nodetest.Shared(t)
	for _, handler := range []string{"", "annotated"} {
		p := nodetest.RunPodHandler(t, n, handler)
		limit := func(c *cri.ContainerConfig) {
			c.Metadata.Name = "c"
			c.Linux.Resources.MemoryLimitInBytes = 64 << 20
		}
		plain := specOf(t, p.Create(limit))
		own := map[string]string{
			"berth.dev/pids-limit": "-1", "berth.dev/ulimits": "nofile=1048576:1048576", "berth.dev/memory-reservation": "1Gi",
			"berth.dev/memory-swappiness": "100", "berth.dev/blkio": `{"weight": 1000}`, "berth.dev/disk-quota": "/=100Gi",
			"berth.dev/net-priority": "0",
		}
		pod := nodetest.RunPodHandler(t, n, handler, func(c *cri.PodSandboxConfig) {
			c.Annotations = map[string]string{}
			for key, value := range own {
				c.Annotations[key], c.Annotations[key+".c"] = value, value
			}
		})
		c, err := pod.TryCreate(limit, func(c *cri.ContainerConfig) { c.Annotations = own })
		if err != nil {
			t.Fatal(err)
		}
		got := specOf(t, c)
		if !reflect.DeepEqual(got.Linux.Resources, plain.Linux.Resources) ||
			!reflect.DeepEqual(got.Process.Rlimits, plain.Process.Rlimits) {
			t.Errorf("under the handler %q annotations changed the limits from %+v to %+v", handler, plain.Linux.Resources,
				got.Linux.Resources)
		}
	}
}

// CVE-2026-53488 (containerd): labels of an image became labels of the container, one of which named the program
// that gets the container's log: a pull, or a start, ran a program on the host. CVE-2026-94603 (podman)
// is an annotation of the image that made it a checkpoint.
//
// Seen to fail with the image's labels among the annotations of the specification in annotations of ocispec/build.go.
func TestCVE_2026_53488_ALabelOfAnImageIsAnOrder(t *testing.T) {
	n := nodetest.Shared(t)
	var options []rt.ImageOption
	for key, value := range orders {
		options = append(options, rt.Label(key, value), rt.Annotation(key, value))
	}
	ref := hostile(t, n, options...)
	for _, handler := range []string{"", "annotated"} {
		p := nodetest.RunPodHandler(t, n, handler)
		named := func(c *cri.ContainerConfig) { c.Metadata.Name = "c" }
		plain := specOf(t, p.Create(named))
		c, err := nodetest.RunPodHandler(t, n, handler).TryCreate(named, withImage(ref))
		if err != nil {
			t.Logf("refused: %v", err) // as a checkpoint
			continue
		}
		got := specOf(t, c)
		for key := range orders {
			if value, ok := got.Annotations[key]; ok && value == orders[key] {
				t.Errorf("the runtime is given %s of the image", key)
			}
		}
		if len(got.Annotations) != len(plain.Annotations) {
			t.Errorf("the annotations are %v", got.Annotations)
		}
		if labels := c.Status().Labels; len(labels) > 0 {
			t.Errorf("the container has labels of the image: %v", labels)
		}
		if !reflect.DeepEqual(got.Linux, plain.Linux) {
			// Paths of the pod differ; what is counted must not.
			if len(got.Linux.Devices) != len(plain.Linux.Devices) || len(got.Linux.Namespaces) != len(plain.Linux.Namespaces) {
				t.Error("labels of the image changed what the container gets")
			}
		}
	}
	if _, err := os.Stat("/tmp/owned"); err == nil {
		t.Error("the host has run a program of the image's choice")
	}
}

// CVE-2025-23266 (NVIDIA's container toolkit): a hook that runs as root of the host while a container is set up
// had the environment of the container, with LD_PRELOAD of the image: the hook loaded the image's library.
// CVE-2024-0132 and CVE-2025-23359 are other holes of that toolkit, whose programs are not Berth's.
//
// Seen to fail with the container's environment given to hooks, in Prepare of keeper/runtime/libcontainer.
func TestCVE_2025_23266_AHookHasTheImagesEnvironment(t *testing.T) {
	dir := t.TempDir()
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("cdi_spec_dirs = [%q]\n", dir)})
	log := filepath.Join(dir, "log")
	hook := filepath.Join(dir, "hook")
	writeFile(t, hook, []byte(fmt.Sprintf(
		"#!/bin/sh\ncat >/dev/null\n{ echo hook $1; tr '\\0' '\\n' </proc/self/environ; pwd; } >>%s\n", log)), 0o755)
	var hooks strings.Builder
	kinds := []string{"createRuntime", "createContainer", "poststart", "poststop"}
	for _, kind := range kinds {
		fmt.Fprintf(&hooks, "    - {hookName: %s, path: %s, args: [hook, %s]}\n", kind, hook, kind)
	}
	writeFile(t, filepath.Join(dir, "vendor.yaml"), []byte("cdiVersion: 0.6.0\nkind: vendor.test/device\ndevices:\n"+
		"- name: d\n  containerEdits:\n    hooks:\n"+hooks.String()), 0o644)
	env := []string{"LD_PRELOAD=/proc/self/cwd/evil.so",
		"LD_LIBRARY_PATH=/evil", "PATH=/evil:/bin", "BASH_ENV=/evil", "ENV=/evil", "GCONV_PATH=/evil",
		"LD_AUDIT=/evil.so", "PYTHONPATH=/evil", "PERL5OPT=-Mevil", "MARK=of-the-image"}
	ref := hostile(t, n, rt.Env(env...), rt.WorkingDir("/evil"))
	for _, handler := range []string{"", "runc", "crun"} {
		t.Run("handler "+handler, func(t *testing.T) {
			nodetest.Handler(t, n, handler)
			writeFile(t, log, nil, 0o644)
			c := nodetest.RunPodHandler(t, n, handler).Run(withImage(ref), func(c *cri.ContainerConfig) {
				c.CDIDevices = []*cri.CDIDevice{{Name: "vendor.test/device=d"}}
				c.Envs = append(c.Envs, &cri.KeyValue{Key: "MARK2", Value: []byte("of-the-image")})
			})
			initProcess(t, c)
			c.Remove()
			nodetest.Eventually(t, 30e9, "all hooks have run", func() error {
				said, err := os.ReadFile(log)
				for _, kind := range kinds {
					if err == nil && !strings.Contains(string(said), "hook "+kind+"\n") {
						err = fmt.Errorf("there is no %s in %q", kind, said)
					}
				}
				return err
			})
			said, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(said)) {
				if line = strings.TrimSpace(line); slices.Contains(env, line) || strings.Contains(line, "evil") ||
					strings.Contains(line, "of-the-image") {
					t.Errorf("a hook has %q", line)
				}
			}
		})
	}
}
