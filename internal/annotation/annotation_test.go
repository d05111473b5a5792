package annotation

import (
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

func apply(t *testing.T, annotations map[string]string, resources *model.Resources) (*model.ContainerConfig,
	map[string]string, error) {
	t.Helper()
	cfg := &model.ContainerConfig{Metadata: model.ContainerMetadata{Name: "web.1"}, Resources: resources}
	return Apply(cfg, &model.SandboxConfig{Annotations: annotations}, Names())
}

func TestEveryAnnotationIsRead(t *testing.T) {
	got, ignored, err := apply(t, map[string]string{
		"berth.dev/ulimits.web.1":            "nofile=10:20, nproc=5,memlock=unlimited",
		"berth.dev/disk-quota.web.1":         "/=10g,/&/data=1g,.*=512m",
		"berth.dev/quota-id.web.1":           "-1",
		"berth.dev/net-priority.web.1":       "5",
		"berth.dev/memory-reservation.web.1": "1Mi",
		"berth.dev/kernel-memory.web.1":      "4096",
		"berth.dev/memory-swappiness.web.1":  "0",
		"berth.dev/pids-limit.web.1":         "-1",
		"berth.dev/log.web.1":                "max_size=10Mi, over=drop",
		"berth.dev/log":                      "rate=0,burst=4k,max_files=3,max_size=1g,over=wait",
		"berth.dev/log.db":                   "rate=nonsense",
		"berth.dev/pids-limit":               "7",
		"berth.dev/blkio.web.1": "weight=500,weight=/dev/a:300,read-bps=/dev/a:1Mi,write-bps=/dev/a:2," +
			"read-iops=/dev/a:3,write-iops=/dev/b:c:4",
		"example.com/ulimits.web.1": "another's",
	}, nil)
	if err != nil || len(ignored) > 0 {
		t.Fatal(ignored, err)
	}
	zero := int64(0)
	want := &model.Resources{
		Ulimits: []model.Ulimit{{Name: "nofile", Soft: 10, Hard: 20}, {Name: "nproc", Soft: 5, Hard: 5},
			{Name: "memlock", Soft: -1, Hard: -1}},
		DiskQuota:         map[string]string{"/": "10g", "/&/data": "1g", ".*": "512m"},
		MemoryReservation: 1 << 20, KernelMemory: 4096, MemorySwappiness: &zero, PidsLimit: -1,
		BlockIO: &model.BlockIO{
			Weight: 500, WeightDevices: []model.WeightDevice{{Path: "/dev/a", Weight: 300}},
			ReadBps:   []model.ThrottleDevice{{Path: "/dev/a", Rate: 1 << 20}},
			WriteBps:  []model.ThrottleDevice{{Path: "/dev/a", Rate: 2}},
			ReadIOPS:  []model.ThrottleDevice{{Path: "/dev/a", Rate: 3}},
			WriteIOPS: []model.ThrottleDevice{{Path: "/dev/b:c", Rate: 4}},
		},
	}
	size, files, rate, burst := int64(10<<20), 3, int64(0), int64(4096)
	log := &model.LogLimits{MaxSize: &size, MaxFiles: &files, Rate: &rate, Burst: &burst, Over: "drop"}
	if !reflect.DeepEqual(got.Log, log) {
		t.Errorf("the limits of the log are %+v", got.Log)
	}
	if !reflect.DeepEqual(got.Resources, want) || got.QuotaID != "-1" || got.NetPriority != 5 {
		t.Errorf("got %+v", got)
	}
}

func TestWhatTheRequestSaysHolds(t *testing.T) {
	given := &model.Resources{PidsLimit: 7, CPUShares: 2}
	got, _, err := apply(t, map[string]string{"berth.dev/pids-limit.web.1": "9",
		"berth.dev/disk-quota.web.1": "1g"}, given)
	if err != nil || got.Resources.PidsLimit != 7 || got.Resources.CPUShares != 2 || got.Resources.DiskQuota[""] != "1g" {
		t.Errorf("%+v, %v", got, err)
	}
	if given.DiskQuota != nil {
		t.Error("the caller's configuration is written to")
	}
}

func TestNonsenseIsRefusedByName(t *testing.T) {
	for name, values := range map[string][]string{
		"ulimits":            {"", "nofile", "nofile=", "nofile=a", "nofile=1:b", "nofile=-2", "nofile=1,nofile=2", ","},
		"disk-quota":         {"/=", "=1g", "/=1g,/=2g"},
		"net-priority":       {"", "-1", "4294967296", "x"},
		"memory-reservation": {"", "-1", "0", "lots"},
		"kernel-memory":      {"x"},
		"memory-swappiness":  {"-1", "101", ""},
		"pids-limit":         {"-2", "x"},
		"log": {"", "max_size", "max_size=x", "max_size=1k", "max_size=-1", "max_files=1", "max_files=x", "rate=10",
			"burst=1", "over=explode", "rate=1m,rate=2m", "odd=1"},
		"blkio": {"",
			"weight", "weight=9", "weight=1001", "weight=x", "read-bps=5", "read-bps=/dev/a:-1", "odd=/dev/a:1"},
	} {
		for _, value := range values {
			key := Prefix + name + ".web.1"
			if _, _, err := apply(t, map[string]string{key: value}, nil); !errdefs.IsInvalidArgument(err) ||
				!strings.Contains(err.Error(), key) {
				t.Errorf("%s: %q: %v", key, value, err)
			}
		}
	}
}

func TestWhatIsNotAllowedIsTold(t *testing.T) {
	cfg := &model.ContainerConfig{Metadata: model.ContainerMetadata{Name: "web"}}
	pod := &model.SandboxConfig{Annotations: map[string]string{
		"berth.dev/ulimits.web": "nofile=1", "berth.dev/ulimits.db": "nofile=1", "berth.dev/ulimit.web": "x",
		"berth.dev/pids-limit.web": "5",
	}}
	got, ignored, err := Apply(cfg, pod, []string{"berth.dev/pids-limit"})
	if err != nil || got.Resources.PidsLimit != 5 || len(got.Resources.Ulimits) > 0 {
		t.Errorf("%+v, %v", got, err)
	}
	want := map[string]string{
		"berth.dev/ulimits.web": "the pod's runtime handler does not allow it",
		"berth.dev/ulimit.web":  "there is no such annotation",
	}
	if !reflect.DeepEqual(ignored, want) {
		t.Errorf("ignored %v", ignored)
	}
}
