package life

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// spanCollector is an OTLP receiver that keeps what it is sent.
type spanCollector struct {
	collector.UnimplementedTraceServiceServer

	mu  sync.Mutex
	all []*spans.Span
}

func (c *spanCollector) Export(_ context.Context,
	req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range req.ResourceSpans {
		for _, s := range r.ScopeSpans {
			c.all = append(c.all, s.Spans...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// children are the names of the spans below those of a call.
func (c *spanCollector) children(call string) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, parent := range c.all {
		if parent.Name != call {
			continue
		}
		for _, s := range c.all {
			if string(s.ParentSpanId) == string(parent.SpanId) && s.EndTimeUnixNano >= s.StartTimeUnixNano {
				names = append(names, s.Name)
			}
		}
	}
	return names
}

// TestAPodsStartIsTold as spans to who collects them, and as a timeline to who asks.
func TestAPodsStartIsTold(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	received := &spanCollector{}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, received)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	n := nodetest.Start(t, node.Options{Tables: fmt.Sprintf("[tracing]\nendpoint = \"http://%s\"\n", listener.Addr())})
	nodetest.BerthOnly(t, "spans and timelines are its own")
	p := nodetest.RunPod(t, n)
	p.Run(func(c *cri.ContainerConfig) { c.Command = []string{"sleep", "1000"} })

	for call, want := range map[string][]string{
		"RunPodSandbox":   {"make the pod's namespaces", "set up the pod's network"},
		"CreateContainer": {"mount the root file system", "build the specification"},
		"StartContainer":  {"init", "program"},
	} {
		deadline := time.Now().Add(2 * time.Minute)
		for have := received.children(call); ; have = received.children(call) {
			missing := slices.DeleteFunc(slices.Clone(want), func(name string) bool { return slices.Contains(have, name) })
			if len(missing) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("below %s are %q, and not %q", call, have, missing)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}

	binaries, err := node.Binaries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	timeline := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(filepath.Join(binaries, "berth"),
			append([]string{"--address", "unix://" + n.Socket, "timeline", p.ID}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("berth timeline %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	text := timeline()
	for _, want := range []string{"pod", "set up the pod's network", "in all", " ms"} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
	// The waterfall leaves out steps that take hardly any time.
	all := timeline("-o", "json")
	for _, want := range []string{"set up the pod's network", "pull ", "mount the root file system", "start", "init",
		"program"} {
		if !strings.Contains(all, `"step": "`+want) {
			t.Errorf("want a step %q in\n%s", want, all)
		}
	}
	other := nodetest.RunPod(t, n)
	other.Run()
	text = timeline(other.ID)
	for _, want := range []string{"first: ", "second: ", "set up the pod's network", "start", "in all", "│"} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in the comparison\n%s", want, text)
		}
	}
	if picture := timeline("-o", "svg"); !strings.HasPrefix(picture, "<svg") || strings.Count(picture, "<rect") < 10 {
		t.Errorf("the picture is\n%s", picture)
	}
}
