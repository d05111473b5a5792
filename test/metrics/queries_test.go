package metrics

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"berth/test/node"
)

// query is one of the dashboard, or of an alert without its comparison.
type query struct{ of, expr string }

func monitoring(t *testing.T, name string) (path string, data []byte) {
	t.Helper()
	root, err := node.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(root, "packaging", "monitoring", name)
	if data, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return path, data
}

// dashboardQueries are those of the dashboard, with its variables set.
func dashboardQueries(t *testing.T) (list []query) {
	t.Helper()
	_, data := monitoring(t, "dashboard.json")
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	ids := map[int]string{}
	for _, p := range dashboard.Panels {
		if other, ok := ids[p.ID]; ok {
			t.Errorf("%q and %q have the ID %d", p.Title, other, p.ID)
		}
		ids[p.ID] = p.Title
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$instance", ".*", "$__rate_interval", "1m").Replace(target.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("%s: %s has a variable that the dashboard does not set", p.Title, expr)
			}
			list = append(list, query{"panel " + p.Title, expr})
		}
	}
	if len(list) < 40 {
		t.Errorf("the dashboard has %d queries", len(list))
	}
	return list
}

// comparison ends the expression of an alert, so that it can be told from the series that it is about.
var comparison = regexp.MustCompile(` (==|!=|>|<|>=|<=) [0-9.]+$`)

// alertQueries are the series that the alerts are about, whether they fire or not.
func alertQueries(t *testing.T) (list []query) {
	t.Helper()
	_, data := monitoring(t, "alerts.yaml")
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			at := comparison.FindStringIndex(r.Expr)
			if at == nil {
				t.Errorf("%s: %s does not end in a comparison with a number", r.Alert, r.Expr)
				continue
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || r.Labels["severity"] == "" {
				t.Errorf("%s has no summary, no description or no severity", r.Alert)
			}
			list = append(list, query{"alert " + r.Alert, r.Expr[:at[0]]})
		}
	}
	if len(list) < 10 {
		t.Errorf("there are %d alerts", len(list))
	}
	return list
}

// selector is a metric in a query, with what it asks of labels.
type selector struct {
	name     string
	matchers []matcher
	by       []string // labels that the series are summed by
}

type matcher struct{ label, op, value string }

var (
	selectors = regexp.MustCompile(`\b((?:berth|grpc|process|go)_[a-z_]+|up)\b(?:\{([^}]*)\})?`)
	matchers  = regexp.MustCompile(`([a-z_]+)(=~|!~|!=|=)"([^"]*)"`)
	grouping  = regexp.MustCompile(`\bby \(([a-z_, ]+)\)`)
)

// target tells whether a label is Prometheus' own, and not in a scrape.
func target(label string) bool { return label == "instance" || label == "job" }

// parse finds the selectors of a query.
func parse(expr string) (list []selector) {
	var by []string
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(g[1], ",") {
			if label = strings.TrimSpace(label); !target(label) {
				by = append(by, label)
			}
		}
	}
	for _, s := range selectors.FindAllStringSubmatch(grouping.ReplaceAllString(expr, ""), -1) {
		found := selector{name: s[1], by: by}
		for _, m := range matchers.FindAllStringSubmatch(s[2], -1) {
			if !target(m[1]) {
				found.matchers = append(found.matchers, matcher{m[1], m[2], m[3]})
			}
		}
		list = append(list, found)
	}
	return list
}

// series is a line of a scrape.
type series struct {
	name   string
	labels map[string]string
}

var line = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? \S+$`)

func parseScrape(text string) (list []series) {
	for l := range strings.Lines(text) {
		m := line.FindStringSubmatch(strings.TrimSpace(l))
		if m == nil {
			continue
		}
		s := series{name: m[1], labels: map[string]string{}}
		for _, label := range matchers.FindAllStringSubmatch(m[2], -1) {
			s.labels[label[1]] = label[3]
		}
		list = append(list, s)
	}
	return list
}

// selects tells whether a selector finds a series.
func (s selector) selects(found series) bool {
	if found.name != s.name {
		return false
	}
	for _, m := range s.matchers {
		value := found.labels[m.label]
		full := regexp.MustCompile("^(?:" + m.value + ")$").MatchString(value)
		if ok := map[string]bool{"=": value == m.value, "!=": value != m.value, "=~": full, "!~": !full}[m.op]; !ok {
			return false
		}
	}
	for _, label := range s.by {
		if _, ok := found.labels[label]; !ok {
			return false
		}
	}
	return true
}

// TestAQueryWithAWrongNameFindsNothing: what looks the queries up sees a wrong name, label and value.
func TestAQueryWithAWrongNameFindsNothing(t *testing.T) {
	scrape := parseScrape("# HELP berth_pods Pods.\nberth_pods{state=\"ready\"} 1\n")
	for expr, want := range map[string]bool{
		`sum by (instance, state) (berth_pods{instance=~".*"})`: true,
		`berth_pods{state="ready"}`:                             true,
		`berth_pods{state!~"re.*"}`:                             false,
		`berth_pods{state="gone"}`:                              false,
		`sum by (phase) (berth_pods)`:                           false,
		`berth_pod`:                                             false,
	} {
		list := parse(expr)
		if len(list) != 1 {
			t.Fatalf("%s: %d selectors", expr, len(list))
		}
		if got := list[0].selects(scrape[0]); got != want {
			t.Errorf("%s: %v, want %v", expr, got, want)
		}
	}
}
