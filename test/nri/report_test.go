package nri

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// doctorSays is the level and the detail of what berth doctor says of NRI.
func doctorSays(t *testing.T, n *node.Node) string {
	t.Helper()
	// Its exit code is about the machine.
	out, err := exec.CommandContext(nodetest.Context(t), filepath.Join(n.Programs(), "berth"),
		"--address", n.Address, "doctor", "-o", "json").Output()
	var list []struct{ Subject, Level, Detail string }
	if json.Unmarshal(out, &list) != nil {
		t.Fatalf("berth doctor: %v: %s", err, out)
	}
	for _, f := range list {
		if f.Subject == "NRI plugins" {
			return f.Level + ": " + f.Detail
		}
	}
	t.Fatalf("berth doctor says nothing of NRI: %s", out)
	return ""
}

func TestMetricsAndDoctorTellOfPlugins(t *testing.T) {
	address := nodetest.FreeAddress(t)
	n := start(t, fmt.Sprintf("[metrics]\naddress = %q\n", address))
	if got := doctorSays(t, n); got != "good: 0 connected, others may connect at "+n.NRISocket {
		t.Errorf("without a plugin: %s", got)
	}
	connect(t, n, "10-listener", &plugin{refuse: func(event string) error {
		if event == "StartContainer" {
			return fmt.Errorf("no")
		}
		return nil
	}})
	c := nodetest.RunPod(t, n).Create()
	if err := c.TryStart(); err == nil {
		t.Error("a plugin has refused the container, and it was started")
	}
	if got := doctorSays(t, n); got != "good: 1 connected, others may connect at "+n.NRISocket {
		t.Errorf("with a plugin: %s", got)
	}
	response, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"berth_nri_plugins 1",
		`berth_nri_call_duration_seconds_count{call="CreateContainer",plugin="10-listener"} 1`,
		`berth_nri_call_duration_seconds_count{call="StartContainer",plugin="10-listener"} 1`,
		`berth_nri_call_errors_total{call="StartContainer",plugin="10-listener"} 1`,
	} {
		if !strings.Contains(string(text), want+"\n") {
			t.Errorf("the metrics have no %s", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", text)
	}
}

func TestDoctorNamesAProgramThatIsNoPlugin(t *testing.T) {
	nodetest.BerthOnly(t, "it is Berth's command")
	n := nodetest.Start(t, node.Options{Prepare: func(n *node.Node) error {
		if err := os.MkdirAll(n.NRIPlugins, 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(n.NRIPlugins, "wrong"), []byte("#!/bin/sh\n"), 0o755)
	}})
	nodetest.Eventually(t, 10*time.Second, "berth doctor names the program", func() error {
		if got := doctorSays(t, n); !strings.HasPrefix(got, "poor: ") || !strings.Contains(got, "wrong") {
			return fmt.Errorf("it says %s", got)
		}
		return nil
	})
}

// TestDoctorNamesAPluginThatDoesNotRun: NRI's library goes on without a program that ends, also where the interface has
// to start. Seen to fail where only the interface's own failure was told.
func TestDoctorNamesAPluginThatDoesNotRun(t *testing.T) {
	nodetest.BerthOnly(t, "it is Berth's command")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n := nodetest.Start(t, node.Options{
		Tables: patientLaunch + "enable = \"on\"\n",
		Prepare: func(n *node.Node) error {
			return errors.Join(os.MkdirAll(n.NRIPlugins, 0o700),
				os.Symlink(self, filepath.Join(n.NRIPlugins, "10-runs")),
				os.WriteFile(filepath.Join(n.NRIPlugins, "20-ends"), []byte("#!/bin/sh\n"), 0o755),
				os.WriteFile(filepath.Join(n.NRIPlugins, "README"), nil, 0o644))
		}})
	if got := nodetest.RunPod(t, n).Output("echo $LAUNCHED_AS"); got != "10-runs\n" {
		t.Errorf("the plugin that runs set %q", got)
	}
	got := doctorSays(t, n)
	if !strings.HasPrefix(got, "poor: 1 connected; ") || !strings.HasSuffix(got, ": 20-ends") {
		t.Errorf("berth doctor says %s", got)
	}
}
