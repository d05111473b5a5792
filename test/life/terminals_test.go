package life

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node/nodetest"
)

// takesTerminals opens as many terminals as it can, and says how many it has and why it has no more.
const takesTerminals = `
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int main(void)
{
	struct rlimit files = {.rlim_cur = 16384, .rlim_max = 16384};
	int count = 0;

	setrlimit(RLIMIT_NOFILE, &files);
	while (open("/dev/ptmx", O_RDWR | O_NOCTTY) >= 0)
		count++;
	printf("it has %d terminals: %s\n", count, strerror(errno));
	fflush(stdout);
	for (;;)
		pause();
}
`

// TestAContainerCannotTakeTheTerminalsOfOthers: a container opens terminals until there are no more for it. An exec in
// another pod, and a container of that, have a terminal all the same.
//
// Seen to fail without the option max of devpts: the container had 3072 terminals, and the exec had none.
func TestAContainerCannotTakeTheTerminalsOfOthers(t *testing.T) {
	nodetest.BerthOnly(t, "one container can take all")
	n := nodetest.Shared(t)
	program := filepath.Join(t.TempDir(), "terminals")
	compile := exec.Command("gcc", "-Wall", "-static", "-x", "c", "-o", program, "-")
	compile.Stdin = strings.NewReader(takesTerminals)
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, handler := range []string{"", "runc", "crun"} {
		t.Run("handler "+handler, func(t *testing.T) {
			nodetest.Handler(t, n, handler)
			greedy := nodetest.RunPodHandler(t, n, handler).Run(
				nodetest.Mounts(&cri.Mount{HostPath: program, ContainerPath: "/terminals", Readonly: true}),
				func(c *cri.ContainerConfig) { c.Command, c.Args = []string{"/terminals"}, nil })
			greedy.WaitLog("it has")
			if got, want := greedy.Stdout(), "it has 1024 terminals: No space left on device\n"; got != want {
				t.Errorf("the container says %q, want %q", got, want)
			}
			p := nodetest.RunPodHandler(t, n, handler)
			other := p.Run(nodetest.Sh("tty; sleep 1000"), func(c *cri.ContainerConfig) { c.Tty = true })
			other.WaitLog("/dev/")
			at := execURL(t, other, &cri.ExecRequest{Cmd: []string{"tty"}, Stdout: true, Tty: true})
			var out bytes.Buffer
			code, err := nodetest.Stream(nodetest.Context(t), nodetest.WebSocket, at,
				remotecommand.StreamOptions{Stdout: &out, Tty: true})
			if err != nil || code != 0 || !strings.Contains(out.String(), "/dev/pts/") {
				t.Errorf("an exec in another pod: %s, output %q", fmt.Sprint(code, " ", err), out.String())
			}
		})
	}
}
