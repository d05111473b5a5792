package dashboard

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node/nodetest"
)

// hostile is a text that runs a script where it is taken for HTML, and hostileName one that a pod may have as its name:
// it makes an element.
const (
	hostile     = `<img src=x onerror=window.owned=1>`
	hostileName = "<img>pod"
)

// has is an expression: the elements of a selector have a text.
func has(selector, text string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(%q)].some((e) => e.textContent.includes(%q))`, selector, text)
}

// TestTheDashboardInABrowser is the life of one page: what happens on the node appears, nothing of what containers are
// named and write is taken for HTML, and the page goes on after a restart of berthd.
func TestTheDashboardInABrowser(t *testing.T) {
	nodetest.BerthOnly(t, "it shows what Berth's own service says")
	n := nodetest.Shared(t)
	address := serve(t, n)
	b := open(t)
	origin, _, _ := strings.Cut(address, "/#")
	named := func(name string) nodetest.PodEdit {
		return func(p *cri.PodSandboxConfig) { p.Metadata.Name = name }
	}

	b.do("open the page", chromedp.Navigate(address))
	b.see("an empty node has no pods", has("main", "There are no pods."))
	if at := value[string](b, "location.href"); strings.Contains(at, "token") {
		t.Errorf("the secret stays in the address: %s", at)
	}

	labelled := func(p *cri.PodSandboxConfig) { p.Labels = map[string]string{"app": hostile} }
	p := nodetest.RunPod(t, n, named(hostileName), labelled)
	c := p.Run(nodetest.Sh(`echo '<script>window.owned=1</script>` + hostile + `'; echo oops >&2
		while [ ! -e /say ]; do sleep 0.05; done; echo live; sleep 3600`))
	b.see("a pod appears", has("tbody th a", hostileName)+" && "+has("tbody td", "running"))
	b.see("its usage appears", has("tbody td", "iB"))
	b.picture("pods")

	b.do("open the pod's page", chromedp.Click("tbody th a"))
	b.see("the log appears as text", has(".log .line", "<script>window.owned=1</script>"+hostile))
	b.see("standard error is marked", has(".log .line.stderr", "oops"))
	b.see("the label appears as text", has("dd", "app="+hostile))
	b.see("the timeline appears", has(".waterfall th", "network")+" && "+has("h2", "Start: "))
	c.Sh("touch /say")
	b.see("a line appears as it is written", has(".log .line", "live"))
	b.picture("pod")

	b.do("open the events", chromedp.Navigate(origin+"/#/events"))
	b.see("earlier events are there", has("tbody tr", "started")+" && "+has("tbody tr", hostileName))
	second := nodetest.RunPod(t, n, named("second"))
	b.see("an event appears as it happens", has("tbody tr", "test/second"))
	b.picture("events")
	for view, shows := range map[string]string{"containers": c.Config.Metadata.Name, "images": "busybox",
		"volumes": "no named volumes", "devices": "device", "space": "logs"} {
		b.do("open "+view, chromedp.Navigate(origin+"/#/"+view))
		b.see(view+" appear", has("main", shows))
	}

	b.do("open the pods", chromedp.Navigate(origin+"/#/pods"))
	b.see("the pods are there", has("tbody th a", "second"))
	b.do("filter", chromedp.SendKeys("main input[type=search]", "second"))
	b.see("the filter leaves one", `document.querySelectorAll("tbody tr").length === 1`)
	if err := n.Terminate(); err != nil {
		t.Fatal(err)
	}
	b.see("the page says that berthd is away", has("#banner:not([hidden])", "berthd does not answer"))
	b.picture("away")
	if err := n.Launch(); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	second.Remove()
	b.see("the page goes on by itself",
		`document.querySelector("#banner").hidden && `+has("main", "Nothing fits the filter."))

	if owned := value[bool](b, `"owned" in window`); owned {
		t.Error("a text of a container has run as a script")
	}
	b.sound(origin)
	b.narrow(origin)
	b.stranger(origin)
}

// sound checks that the page has asked nobody else, and that nothing on it has failed.
func (b *browser) sound(origin string) {
	b.t.Helper()
	if n := value[int](b, `document.querySelectorAll("main img, main script, main iframe").length`); n != 0 {
		b.t.Errorf("%d elements come from texts of containers", n)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for host := range b.hosts {
		if "http://"+host != origin {
			b.t.Errorf("the page asks %q", host)
		}
	}
	for _, complaint := range b.complaints {
		// The answers while berthd is away.
		if !strings.Contains(complaint, "status of 503") {
			b.t.Errorf("the browser complains: %s", complaint)
		}
	}
}

// narrow checks that a phone shows the page without scrolling sideways.
func (b *browser) narrow(origin string) {
	b.t.Helper()
	b.do("make it narrow", chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile),
		chromedp.Navigate(origin+"/#/containers"))
	b.see("the page fits into a phone",
		`document.documentElement.scrollWidth <= 390 && document.querySelector("tbody tr")`)
	b.picture("narrow")
}

// stranger opens the page without the secret, under another name of the loopback: to the browser that is another page,
// which has nothing of the first. Who finds the port has no data.
func (b *browser) stranger(origin string) {
	b.t.Helper()
	b.do("open the page without the secret", chromedp.Navigate(strings.Replace(origin, "127.0.0.1", "localhost", 1)))
	b.see("the page says why it is empty", has("#banner:not([hidden])", "the address lacks its secret"))
	if n := value[int](b, `document.querySelectorAll("table").length`); n != 0 {
		b.t.Error("the page shows a table")
	}
}
