package life

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// spaceReport is what `berth system df -o json` prints, as far as tests look at it.
type spaceReport struct {
	Images, Containers, Volumes, Logs struct {
		Total, Active           int
		Bytes, ReclaimableBytes uint64
	}
	ImageList []struct {
		ID                   string
		Names                []string
		Bytes, UnsharedBytes uint64
		Used                 bool
		PulledAt             time.Time
	}
	ContainerList []struct {
		Name                    string
		Running                 bool
		WritableBytes, LogBytes uint64
	}
	VolumeList []struct {
		Name  string
		Used  bool
		Bytes uint64
	}
}

func space(t *testing.T, n *node.Node) *spaceReport {
	t.Helper()
	code, out, complaints := typed(t, n, "system", "df", "-o", "json")
	report := &spaceReport{}
	if err := json.Unmarshal([]byte(out), report); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v, %s", code, err, complaints)
	}
	return report
}

func TestDiskSpaceIsCounted(t *testing.T) {
	nodetest.BerthOnly(t, "only Berth tells the layers of images")
	n := nodetest.Start(t, node.Options{})
	r, host := broken(t, n)
	const mib = 1 << 20
	shared := registrytest.WithFiles(map[string]string{"shared": strings.Repeat("s", 3*mib)})
	push(t, r, "a:1", image(t, shared, registrytest.WithFiles(map[string]string{"own": strings.Repeat("a", 2*mib)})))
	push(t, r, "b:1", image(t, shared, registrytest.WithFiles(map[string]string{"own": strings.Repeat("b", mib)})))
	began := time.Now()
	for _, name := range []string{"a:1", "b:1"} {
		if err := pull(t, n, host+"/"+name, nil); err != nil {
			t.Fatal(err)
		}
	}
	report := space(t, n)
	if report.Images.Total != 2 || report.Images.Active != 0 || report.Images.ReclaimableBytes != report.Images.Bytes ||
		report.Images.Bytes < 6*mib || report.Images.Bytes > 7*mib {
		t.Errorf("images: %+v", report.Images)
	}
	for i, own := range []uint64{2 * mib, mib} {
		one := report.ImageList[i]
		if one.UnsharedBytes < own || one.UnsharedBytes > own+mib/4 || one.Bytes < own+3*mib || one.PulledAt.Before(began) {
			t.Errorf("image %d: %+v", i, one)
		}
	}
	data := filepath.Join(t.TempDir(), "data")
	volume := strings.ToLower(t.Name())
	for _, args := range [][]string{
		{"run", "--rm=false", "--name", "ended", "-v", volume + ":/data", node.Busybox, "sh", "-c",
			"head -c 2097152 /dev/zero >/layer; head -c 1048576 /dev/zero >/data/file; head -c 600000 /dev/zero | tr '\\0' x"},
		{"run", "-d", "--name", "lives", node.Busybox, "sh", "-c",
			"head -c 1048576 /dev/zero >/layer; echo ready; exec sleep 1000"},
	} {
		if code, _, complaints := typed(t, n, append([]string{"--data-dir", data}, args...)...); code != 0 {
			t.Fatal(complaints)
		}
	}
	nodetest.Eventually(t, 30*time.Second, "what was written is counted", func() error {
		report = space(t, n)
		c, logs := report.Containers, report.Logs
		if c.Total != 2 || c.Active != 1 || c.ReclaimableBytes < 2*mib || c.Bytes < c.ReclaimableBytes+mib ||
			logs.ReclaimableBytes < 600000 || logs.Bytes <= logs.ReclaimableBytes {
			return fmt.Errorf("containers: %+v, logs: %+v", c, logs)
		}
		return nil
	})
	if v := report.Volumes; v.Total != 1 || v.Active != 1 || v.Bytes < mib || v.ReclaimableBytes != 0 {
		t.Errorf("volumes: %+v", v)
	}
	if report.Images.Active != 1 || report.Images.Bytes-report.Images.ReclaimableBytes < mib/2 {
		t.Errorf("images with one that is used: %+v", report.Images)
	}
	if code, _, complaints := typed(t, n, "--data-dir", data, "rm", "ended"); code != 0 {
		t.Fatal(complaints)
	}
	if v := space(t, n).Volumes; v.Active != 0 || v.ReclaimableBytes != v.Bytes {
		t.Errorf("volumes without their container: %+v", v)
	}
	code, out, complaints := typed(t, n, "system", "df", "-v")
	for _, want := range []string{"KIND", "RECLAIMABLE", "UNSHARED", "WRITABLE LAYER", host + "/a:1", "lives", volume} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d, no %s in\n%s%s", code, want, out, complaints)
		}
	}
	if code, out, complaints := typed(t, n, "images", "--sort-by", "age", "-o", "json"); code != 0 ||
		strings.Count(out, "pulledAt") != 3 || strings.Contains(out, "0001-01-01") {
		t.Errorf("images: exit code %d\n%s%s", code, out, complaints)
	}
	if code, out, complaints := typed(t, n, "images"); code != 0 || !strings.Contains(out, "AGE") {
		t.Errorf("images: exit code %d\n%s%s", code, out, complaints)
	}
	typed(t, n, "--data-dir", data, "rm", "-f", "lives")
	typed(t, n, "volume", "rm", volume)
}
