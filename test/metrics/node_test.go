package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/metrics"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// EnvPrometheus is the directory with prometheus and promtool. Empty: the queries are looked up in a scrape.
const EnvPrometheus = "BERTH_PROMETHEUS"

// cniDir is where Debian has plugins.
const cniDir = "/usr/lib/cni"

// busyNode is a node on which everything happens that the queries look for. observe is called with the address of its
// metrics before anything does.
func busyNode(t *testing.T, observe func(n *node.Node, address string)) (address string) {
	t.Helper()
	nodetest.BerthOnly(t, "containerd has other metrics")
	nodetest.Root(t)
	if _, err := os.Stat(filepath.Join(cniDir, "bridge")); err != nil {
		t.Skipf("CNI plugins are needed (Debian: containernetworking-plugins): %v", err)
	}
	address = nodetest.FreeAddress(t)
	verifiers := t.TempDir()
	if err := os.WriteFile(filepath.Join(verifiers, "anything"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	// The range has one address for a pod.
	n := nodetest.Start(t, node.Options{
		CNI: true, PodCIDR: "10.251.249.0/30",
		Tables: fmt.Sprintf("[metrics]\naddress = %q\n[image_verifier]\nbin_dir = %q\n", address, verifiers),
	})
	if observe != nil {
		observe(n, address)
	}
	ctx := nodetest.Context(t)
	away := make(chan error, 1)
	go func() { // until the client has tried often enough
		_, err := n.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: "127.0.0.1:1/away/image:1"}})
		away <- err
	}()
	nodetest.Pull(t, n, node.Busybox)
	p := nodetest.RunPod(t, n)
	if _, err := n.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: nodetest.PodConfig(n)}); err == nil {
		t.Error("a pod got an address, and there was none left")
	}
	c := p.Run(nodetest.Sh(`head -c 40000 /dev/zero | tr '\0' x; echo; exec sleep 3600`))
	c.Sh("true")
	if _, err := c.Exec(10, "/no/such/program"); err == nil {
		t.Error("a program that does not exist has run")
	}
	at, err := n.Runtime.Exec(ctx, &cri.ExecRequest{ContainerId: c.ID, Cmd: []string{"true"}, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nodetest.Stream(ctx, nodetest.SPDY, at.Url, remotecommand.StreamOptions{Stdout: io.Discard}); err != nil {
		t.Error(err)
	}
	p.Run(nodetest.Sh("exit 3")).WaitExit()
	oom := p.Run(nodetest.Sh("x=0123456789abcdef; while :; do x=$x$x; done"), func(c *cri.ContainerConfig) {
		c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 32 << 20, MemorySwapLimitInBytes: 32 << 20}
	})
	if s := oom.WaitExit(); s.Reason != "OOMKilled" {
		t.Errorf("a container that took too much memory ended with %s", s.Reason)
	}
	if _, err := n.Runtime.ListPodSandboxStats(ctx, &cri.ListPodSandboxStatsRequest{}); err != nil {
		t.Error(err)
	}
	nodetest.WantCode(t, <-away, codes.Unknown) // the word at the beginning of the text says the rest
	return address
}

func scrape(ctx context.Context, address string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("scrape %s: %s", address, resp.Status)
	}
	data, err := io.ReadAll(resp.Body)
	return string(data), err
}

// TestQueriesFindTheirSeries of the dashboard and the alerts, and a busy node has all metrics that are documented,
// with the figures of what has happened.
func TestQueriesFindTheirSeries(t *testing.T) {
	queries := slices.Concat(dashboardQueries(t), alertQueries(t))
	var prom *prometheus
	address := busyNode(t, func(n *node.Node, address string) {
		if dir := os.Getenv(EnvPrometheus); dir != "" {
			prom = startPrometheus(t, dir, n.Dir, address)
		}
	})
	// What a call has done may be counted a moment after its answer.
	nodetest.Eventually(t, time.Minute, "the node has its metrics", func() error {
		text, err := scrape(nodetest.Context(t), address)
		if err != nil {
			return err
		}
		if all := missing(text, queries); len(all) > 0 {
			return errors.New(strings.Join(all, "\n"))
		}
		return nil
	})
	if prom != nil {
		prom.check(t, queries)
	}
}

// missing says what the metrics of a busy node lack.
func missing(text string, queries []query) (all []string) {
	lack := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	found := parseScrape(text)
	has := func(s selector) bool { return slices.ContainsFunc(found, s.selects) }
	for _, q := range queries {
		list := parse(q.expr)
		if len(list) == 0 {
			lack("%s: no metric in %s", q.of, q.expr)
		}
		for _, s := range list {
			if s.name != "up" && !has(s) {
				lack("%s: nothing is found for %+v", q.of, s)
			}
		}
	}
	for _, d := range metrics.All() {
		if strings.HasPrefix(d.Name, "berth_device") || strings.HasPrefix(d.Name, "berth_nri_call") {
			continue // the node has no device manager, and no NRI plugins: test/nri has their metrics
		}
		name := d.Name
		if d.Type == metrics.Histogram {
			name += "_count"
		}
		if !has(selector{name: name, by: d.Labels}) {
			lack("the node has no %s with labels %v", name, d.Labels)
		}
	}
	for _, want := range []string{
		`berth_pods{state="ready"} 1`,
		`berth_containers{state="running"} 1`,
		`berth_containers{state="exited"} 2`,
		`berth_container_exits_total{reason="OOMKilled"} 1`,
		`berth_container_exits_total{reason="Error"} 1`,
		`berth_container_oom_kills_total 1`,
		`berth_cni_call_errors_total{command="ADD",plugin="bridge"} 1`,
		`berth_image_pull_errors_total{reason="unavailable",registry="127.0.0.1:1"} 1`,
		`berth_image_pull_layers_total{source="registry"} 1`,
		`berth_image_pulls_in_progress 0`,
		`berth_image_verifier_duration_seconds_count{result="accepted",verifier="anything"} 1`,
		`berth_images 1`,
		`berth_exec_duration_seconds_count{kind="stream"} 1`,
		`berth_exec_duration_seconds_count{kind="sync"} 2`,
		`berth_exec_errors_total{kind="sync",reason="failed_precondition"} 1`,
		`berth_streams_total{kind="exec"} 1`,
		`berth_keeper_up 1`,
		`berth_keeper_containers 2`,
		`berth_log_lines_cut_total 2`,
	} {
		if !strings.Contains(text, "\n"+want+"\n") {
			name, _, _ := strings.Cut(want, "{")
			name, _, _ = strings.Cut(name, " ")
			lack("want %s, got %s", want, linesOf(text, name))
		}
	}
	return all
}

func linesOf(text, name string) (list []string) {
	for l := range strings.Lines(text) {
		if strings.HasPrefix(l, name) {
			list = append(list, strings.TrimSpace(l))
		}
	}
	return list
}
