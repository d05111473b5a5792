package metrics

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// prometheus is a real one, which scrapes one node and has Berth's alerts.
type prometheus struct {
	address string
	output  *nodetest.Buffer
}

// startPrometheus starts the program in dir. It ends with the test.
func startPrometheus(t *testing.T, dir, data, scraped string) *prometheus {
	t.Helper()
	alerts, _ := monitoring(t, "alerts.yaml")
	check := exec.Command(filepath.Join(dir, "promtool"), "check", "rules", "--lint=all", "--lint-fatal", alerts)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
	config := filepath.Join(data, "prometheus.yml")
	text := fmt.Sprintf(`
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}
rule_files: [%q]
scrape_configs:
  - job_name: berth
    static_configs:
      - targets: [%q]
`, alerts, scraped)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &prometheus{address: nodetest.FreeAddress(t), output: &nodetest.Buffer{}}
	cmd := exec.Command(filepath.Join(dir, "prometheus"), "--config.file="+config, "--web.listen-address="+p.address,
		"--storage.tsdb.path="+filepath.Join(data, "prometheus"))
	cmd.Stdout, cmd.Stderr = p.output, p.output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Prometheus said:\n%s", p.output)
		}
	})
	nodetest.Eventually(t, node.Patience(time.Minute), "Prometheus has scraped the node", func() error {
		n, err := p.count(nodetest.Context(t), `up == 1`)
		if err == nil && n == 0 {
			err = errors.New("it is not up")
		}
		return err
	})
	return p
}

// get asks the API.
func (p *prometheus) get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/api/v1/"+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", path, resp.Status, body.String())
	}
	return json.Unmarshal(body.Bytes(), into)
}

// count is how many series a query finds.
func (p *prometheus) count(ctx context.Context, expr string) (int, error) {
	var answer struct {
		Data struct{ Result []json.RawMessage }
	}
	err := p.get(ctx, "query?query="+url.QueryEscape(expr), &answer)
	return len(answer.Data.Result), err
}

// check evaluates the queries and looks at the alerts.
func (p *prometheus) check(t *testing.T, queries []query) {
	t.Helper()
	ctx := nodetest.Context(t)
	for _, q := range queries {
		nodetest.Eventually(t, node.Patience(20*time.Second), q.of+" finds its series", func() error {
			n, err := p.count(ctx, q.expr)
			if err == nil && n == 0 {
				err = fmt.Errorf("nothing is found for %s", q.expr)
			}
			return err
		})
	}
	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError, State string }
			}
		}
	}
	nodetest.Eventually(t, node.Patience(20*time.Second), "the alert of a container that was killed fires", func() error {
		if err := p.get(ctx, "rules", &rules); err != nil {
			return err
		}
		for _, r := range rules.Data.Groups[0].Rules {
			if r.Name == "BerthContainerOOMKilled" && r.State == "firing" {
				return nil
			}
		}
		return fmt.Errorf("the rules: %+v", rules.Data.Groups)
	})
	quiet := []string{"BerthDown", "BerthKeeperDown", "BerthKeeperRestarted", "BerthContainerLost", "BerthLogsAreLost"}
	alerts := 0
	for _, r := range rules.Data.Groups[0].Rules {
		alerts++
		if r.Health != "ok" {
			t.Errorf("%s: %s %s", r.Name, r.Health, r.LastError)
		}
		if slices.Contains(quiet, r.Name) && r.State != "inactive" {
			t.Errorf("%s is %s, and nothing of it has happened", r.Name, r.State)
		}
	}
	t.Logf("%d queries and %d alerts", len(queries), alerts)
}
