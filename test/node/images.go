package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/registrytest"
)

// RegistryHost is the name that references of the standard images begin with; the node mirrors it to its registry.
const RegistryHost = "registry.test"

// The standard images, each made of Debian's busybox-static.
const (
	// Busybox has all applets as links, and runs sh.
	Busybox = RegistryHost + "/busybox:1"
	// Defaults has an entrypoint (echo entry), a command (cmd), FOO=image and KEPT=image, a working directory (/work), a
	// user by name (app, 1001:1002, also in group 1003), a volume (/data) and a label.
	Defaults = RegistryHost + "/defaults:1"
	// StopSignal ignores SIGTERM and ends with 7 on SIGUSR1, its stop signal, and says so.
	StopSignal = RegistryHost + "/stopsignal:1"
	// Pause waits for ever; what containerd needs for a pod.
	Pause = RegistryHost + "/pause:1"
)

// NewRegistry is a registry on loopback that serves the standard images.
func NewRegistry() (*registrytest.Registry, error) {
	images, err := standardImages()
	if err != nil {
		return nil, err
	}
	r, err := registrytest.New()
	if err != nil {
		return nil, err
	}
	for ref, image := range images {
		if err := r.Push(ref[len(RegistryHost)+1:], image); err != nil {
			return nil, fmt.Errorf("push %s: %w", ref, err)
		}
	}
	return r, nil
}

var standardImages = sync.OnceValues(func() (map[string]v1.Image, error) {
	entries, err := registrytest.Busybox()
	if err != nil {
		return nil, err
	}
	busybox := slices.Clip([]registrytest.ImageOption{
		registrytest.Layer(entries...),
		registrytest.Env("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
	})
	pause, err := PauseProgram()
	if err != nil {
		return nil, err
	}
	images := map[string]v1.Image{}
	for ref, options := range map[string][]registrytest.ImageOption{
		Busybox: append(busybox, registrytest.Cmd("sh")),
		Defaults: append(busybox,
			registrytest.Layer(
				registrytest.File("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\napp:x:1001:1002::/home/app:/bin/sh\n"),
				registrytest.File("etc/group", 0o644, "root:x:0:\napp:x:1002:\nextra:x:1003:app\n"),
				registrytest.Dir("work", 0o755).Owned(1001, 1002)),
			registrytest.Env("FOO=image", "KEPT=image"),
			registrytest.Entrypoint("/bin/echo", "entry"), registrytest.Cmd("cmd"),
			registrytest.WorkingDir("/work"), registrytest.User("app"), registrytest.Volumes("/data"),
			registrytest.Label("made-by", "test")),
		StopSignal: append(busybox, registrytest.StopSignal("SIGUSR1"), registrytest.Cmd("sh", "-c",
			`trap 'echo got USR1; exit 7' USR1; trap '' TERM; echo ready; while :; do sleep 0.05; done`)),
		Pause: {registrytest.Layer(registrytest.File("pause", 0o755, pause)), registrytest.Entrypoint("/pause")},
	} {
		if images[ref], err = registrytest.Image(options...); err != nil {
			return nil, fmt.Errorf("build %s: %w", ref, err)
		}
	}
	return images, nil
})

// pauseSource ends with SIGTERM and SIGINT, also as the init process of a PID namespace, which a signal without a
// handler does not reach.
const pauseSource = `#include <signal.h>
#include <unistd.h>
static void end(int number) { (void)number; _exit(0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }
`

// PauseProgram is a small static program that waits for a signal, as the pause image of Kubernetes has it.
func PauseProgram() (string, error) {
	dir, err := os.MkdirTemp("", "berth-pause-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	source, program := filepath.Join(dir, "pause.c"), filepath.Join(dir, "pause")
	if err := os.WriteFile(source, []byte(pauseSource), 0o600); err != nil {
		return "", err
	}
	if out, err := exec.Command("gcc", "-Os", "-static", "-s", "-o", program, source).CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile the pause program: %w: %s", err, out)
	}
	data, err := os.ReadFile(program)
	return string(data), err
}
