package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"berth/internal/registrytest"
	"berth/test/node"
)

const (
	registryName = "demo.berth.test"
	repository   = "hello:1"
	image        = registryName + "/" + repository
)

func (d *demo) serveImage(context.Context) error {
	img, err := registrytest.Image(
		registrytest.WithBinary(d.web, "/web"),
		registrytest.WithFiles(map[string]string{
			"etc/passwd": "root:x:0:0:root:/:/web\nhello:x:1000:1000:hello:/:/web\n", "etc/group": "root:x:0:\nhello:x:1000:\n",
		}),
		registrytest.Cmd("serve"),
	)
	if err != nil {
		return err
	}
	if d.registry, err = registrytest.New(); err != nil {
		return err
	}
	if err := d.registry.Push(repository, img); err != nil {
		return err
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	say(fmt.Sprintf("%s: %d layers, at %s", image, len(layers), d.registry.URL()))
	return nil
}

func (d *demo) startNode(ctx context.Context) error {
	n, err := node.Start(ctx, node.Options{Registry: d.registry, Binaries: d.binaries})
	if err != nil {
		return err
	}
	d.node = n
	d.dataDir = filepath.Join(n.Dir, "cli")
	if err := d.registry.HostsDir(n.HostsDir, registryName); err != nil {
		return err
	}
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", n.PID()))
	if err != nil {
		return err
	}
	say(d.bold("$ " + strings.ReplaceAll(strings.TrimRight(string(args), "\x00"), "\x00", " ")))
	keeper, ok := n.KeeperPID()
	if !ok {
		return errors.New("no keeper answers")
	}
	say(fmt.Sprintf("berthd is process %d, berth-keeper is process %d", n.PID(), keeper))
	return nil
}

func (d *demo) lookAround(ctx context.Context) error {
	if _, err := d.berth(ctx, "doctor", "--root", d.node.Root, "--state", d.node.State,
		"--cni-conf-dir", d.node.CNIConfDir); err != nil {
		return err
	}
	_, err := d.berth(ctx, "version")
	return err
}

func (d *demo) pull(ctx context.Context) error {
	if _, err := d.berth(ctx, "pull", image); err != nil {
		return err
	}
	_, err := d.berth(ctx, "images")
	return err
}

// runPod runs the manifest as it is, or with another port of the host where that one is taken.
func (d *demo) runPod(ctx context.Context) error {
	data, err := os.ReadFile(d.manifest)
	if err != nil {
		return err
	}
	match := regexp.MustCompile(`hostPort: (\d+)`).FindSubmatch(data)
	if match == nil {
		return fmt.Errorf("%s names no hostPort", d.manifest)
	}
	if d.hostPort, err = strconv.Atoi(string(match[1])); err != nil {
		return err
	}
	manifest := d.manifest
	if l, err := net.Listen("tcp", ":"+string(match[1])); err == nil {
		l.Close()
	} else {
		if d.hostPort, err = node.Port(); err != nil {
			return err
		}
		say(fmt.Sprintf("port %s is taken on this machine; %d does as well", match[1], d.hostPort))
		manifest = filepath.Join(d.node.Dir, "hello.yaml")
		text := strings.Replace(string(data), string(match[0]), "hostPort: "+strconv.Itoa(d.hostPort), 1)
		if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
			return err
		}
	}
	if _, err := d.berth(ctx, "run", "-d", manifest); err != nil {
		return err
	}
	var pods []struct {
		Name string   `json:"name"`
		IPs  []string `json:"ips"`
	}
	if err := d.ask(ctx, &pods, "pods"); err != nil {
		return err
	}
	if len(pods) != 1 || pods[0].Name != "hello" || len(pods[0].IPs) == 0 {
		return fmt.Errorf("berth pods: want the pod hello with an address, got %+v", pods)
	}
	d.podIP = pods[0].IPs[0]
	return nil
}

func (d *demo) list(ctx context.Context) error {
	if _, err := d.berth(ctx, "pods"); err != nil {
		return err
	}
	out, err := d.berth(ctx, "ps")
	if err == nil && strings.Count(out, "running") != 2 {
		err = errors.New("two containers should be running")
	}
	return err
}

// get asks the web server, for as long as it takes to come up.
func get(ctx context.Context, url string) (string, error) {
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		body, err := getOnce(ctx, client, url)
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return body, err
		}
	}
}

func getOnce(ctx context.Context, client *http.Client, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, response.Status)
	}
	return string(body), err
}

// fetch asks, shows and checks.
func (d *demo) fetch(ctx context.Context, url string) error {
	begin := time.Now()
	body, err := get(ctx, url)
	if err != nil {
		return err
	}
	say(fmt.Sprintf("GET %s: %s  %s", url, strings.TrimSpace(body), d.dim("("+rounded(time.Since(begin))+")")))
	if want := "from pod hello at " + d.podIP; !strings.Contains(body, want) {
		return fmt.Errorf("the answer of %s lacks %q", url, want)
	}
	return nil
}

func (d *demo) podURL() string { return fmt.Sprintf("http://%s:8080/", d.podIP) }

func (d *demo) hostURL() string { return fmt.Sprintf("http://127.0.0.1:%d/", d.hostPort) }

func (d *demo) reach(ctx context.Context) error {
	if err := d.fetch(ctx, d.podURL()); err != nil {
		return fmt.Errorf("at the pod's address: %w", err)
	}
	if err := d.fetch(ctx, d.hostURL()); err != nil {
		return fmt.Errorf("at the host's port: %w", err)
	}
	return nil
}

func (d *demo) followLog(ctx context.Context) error {
	seen := 0
	if err := d.lines(ctx, func(string) bool { seen++; return seen == 3 }, "logs", "-f", "hello/clock"); err != nil {
		return err
	}
	out, err := d.berth(ctx, "logs", "--tail", "2", "--timestamps", "hello/web")
	if err == nil && !strings.Contains(out, "GET /") {
		err = errors.New("the log lacks the requests")
	}
	return err
}

func (d *demo) execute(ctx context.Context) error {
	out, err := d.berth(ctx, "exec", "hello/web", "/web", "whoami")
	if err == nil && (!strings.Contains(out, "user 1000 on host hello") || !strings.Contains(out, d.podIP)) {
		err = errors.New("the command did not run in the pod")
	}
	return err
}

func (d *demo) stats(ctx context.Context) error {
	_, err := d.berth(ctx, "stats", "--no-stream")
	return err
}

func (d *demo) forward(ctx context.Context) error {
	port, err := node.Port()
	if err != nil {
		return err
	}
	var fetched error
	err = d.lines(ctx, func(line string) bool {
		if !strings.HasPrefix(line, "Forwarding from") {
			return false
		}
		fetched = d.fetch(ctx, fmt.Sprintf("http://127.0.0.1:%d/", port))
		return true
	}, "port-forward", "--bind", "127.0.0.1", "hello", fmt.Sprintf("%d:8080", port))
	return errors.Join(err, fetched)
}

func (d *demo) killDaemon(ctx context.Context) error {
	pid := d.node.PID()
	if err := d.node.Kill(); err != nil {
		return err
	}
	say(d.bold(fmt.Sprintf("$ kill -9 %d", pid)))
	if _, err := d.command(ctx, "ps").CombinedOutput(); err == nil {
		return errors.New("berth ps worked without a daemon")
	}
	return d.reach(ctx)
}

func (d *demo) restartDaemon(ctx context.Context) error {
	var missed atomic.Int64
	watchCtx, cancel := context.WithCancel(ctx)
	watched := make(chan int64, 1)
	go func() { // the pod is asked all the while
		client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		asked := int64(0)
		for watchCtx.Err() == nil {
			if _, err := getOnce(ctx, client, d.podURL()); err != nil {
				missed.Add(1)
			}
			asked++
			time.Sleep(5 * time.Millisecond)
		}
		watched <- asked
	}()
	begin := time.Now()
	err := d.node.Restart(ctx)
	ready := time.Since(begin)
	cancel()
	asked := <-watched
	if err != nil {
		return err
	}
	say(fmt.Sprintf("berthd is process %d now, and was ready after %s", d.node.PID(), rounded(ready)))
	say(fmt.Sprintf("the pod was asked %d times meanwhile and failed to answer %d times", asked, missed.Load()))
	if missed.Load() > 0 {
		return errors.New("the pod noticed")
	}
	if err := d.list(ctx); err != nil {
		return err
	}
	if err := d.reach(ctx); err != nil {
		return err
	}
	out, err := d.berth(ctx, "logs", "--tail", "3", "hello/clock")
	if err == nil && strings.Count(out, "tick") != 3 {
		err = errors.New("the log does not go on")
	}
	return err
}

func (d *demo) removeAll(ctx context.Context) error {
	for _, args := range [][]string{{"stop", "hello"}, {"ps", "--all"}, {"rm", "hello"}, {"rmi", image},
		{"pods"}, {"images"}} {
		if _, err := d.berth(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) stopNode(context.Context) error {
	keeper, ok := d.node.KeeperPID()
	if !ok {
		return errors.New("no keeper answers")
	}
	if err := d.node.Terminate(); err != nil {
		return err
	}
	say("berthd has ended")
	process, err := os.FindProcess(keeper)
	if err != nil {
		return err
	}
	if err := process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, ok := d.node.KeeperPID(); !ok {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the keeper, process %d, has not ended", keeper)
		}
	}
	say("berth-keeper has ended")
	return d.registry.Close()
}
