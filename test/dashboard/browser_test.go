package dashboard

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// serve runs `berth dashboard` on a node, and returns the address that it prints. At the end of the test it gets
// Ctrl-C, and has to end well.
func serve(t *testing.T, n *node.Node) string {
	t.Helper()
	binaries, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(binaries, "berth"), "--address", n.Address, "dashboard")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		timer := time.AfterFunc(node.Patience(20*time.Second), func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		if err := cmd.Wait(); err != nil {
			t.Errorf("berth dashboard, after Ctrl-C: %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("berth dashboard prints no address: %v", err)
	}
	return strings.TrimSpace(line)
}

// browser is chromium with one tab.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex // guards what follows
	complaints []string   // what the browser's console says: errors of scripts, refusals of the policy
	hosts      map[string]bool
}

// open starts chromium. It ends with the test, and its profile is removed.
func open(t *testing.T) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is missing: `make test` installs it (packaging/packages.sh chromium)")
	}
	home := t.TempDir() // chromium leaves files there
	// As root chromium has no sandbox of its own. It asks nobody but the page.
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.WindowSize(1280, 800), chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-crash-reporter", true),
		chromedp.Env("HOME="+home, "TMPDIR="+home))
	ctx, cancel := chromedp.NewExecAllocator(nodetest.Context(t), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits until chromium has ended
		cancel()
	})
	b := &browser{t: t, ctx: ctx, hosts: map[string]bool{}}
	if err := chromedp.Listen(ctx, b.heard); err != nil { // this starts it
		t.Fatalf("start chromium: %v", err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// heard notes what the browser tells of a page.
func (b *browser) heard(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, e.ExceptionDetails.Text)
	case *cdplog.EventEntryAdded:
		b.complaints = append(b.complaints, e.Entry.Text)
	case *network.EventRequestWillBeSent:
		_, rest, _ := strings.Cut(e.Request.URL, "://")
		host, _, _ := strings.Cut(rest, "/")
		b.hosts[host] = true
	}
}

// do runs actions, each of which has to succeed.
func (b *browser) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, node.Patience(time.Minute))
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

// see waits until an expression of JavaScript holds on the page.
func (b *browser) see(claim, expression string) {
	b.t.Helper()
	nodetest.Eventually(b.t, 20*time.Second, claim, func() error {
		holds, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if err != nil {
			return err
		}
		if !holds {
			text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.body.innerText"))
			return fmt.Errorf("the page shows\n%s", text)
		}
		return nil
	})
}

// value is that of an expression.
func value[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// picture writes screenshots, light and dark, where somebody wants to look at the page.
func (b *browser) picture(name string) {
	dir := os.Getenv("BERTH_SCREENSHOTS")
	if dir == "" {
		return
	}
	for _, scheme := range []string{"dark", "light"} {
		features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
		_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features})
		if err != nil {
			b.t.Fatal(err)
		}
		data, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
		if err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+"-"+scheme+".png"), data, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
}
