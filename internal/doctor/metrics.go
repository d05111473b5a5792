package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"time"
)

// cadvisorSocket is where a kubelet's cAdvisor looks for containerd. Before Kubernetes 1.37, the kubelet's flag
// --containerd may name another socket.
const cadvisorSocket = "/run/containerd/containerd.sock"

// checkMetrics says whether the cAdvisor of a kubelet on this machine knows the pods of Berth's containers. One that
// has found no containerd when it started does not look again.
func checkMetrics(ctx context.Context, cfg Config) Finding {
	k, runs := findKubelet(cfg.proc())
	socket := k.containerd()
	if !runs {
		return good("no kubelet runs here, whose cAdvisor would look for containerd")
	}
	if k.statsFromCRI(cfg.proc()) {
		return good("a kubelet takes container metrics from berthd over the CRI (feature gate " + statsFromCRI + ")")
	}
	if cfg.ContainerdVersion == nil {
		return good("a kubelet's cAdvisor looks for containerd at " + socket)
	}
	const effect = "its container metrics (/metrics/cadvisor, the summary API) have no names of Berth's pods, " +
		"and no pod network"
	restart := "Then restart the kubelet, which looks once: systemctl restart " + k.unit
	flag := "before Kubernetes 1.37, " + k.withFlag("containerd="+cfg.Socket)
	advice := fmt.Sprintf("Set containerd_address = %q in the daemon's configuration, "+
		"and then: systemctl restart berthd\nor %s.\n%s", socket, flag, restart)
	lacks := func(advice, format string, args ...any) Finding {
		return poor("a kubelet's cAdvisor "+fmt.Sprintf(format, args...)+": "+effect, advice)
	}
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return lacks(advice, "looks for containerd at %s, where nothing is", socket)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	switch version, err := cfg.ContainerdVersion(ctx, socket); {
	case err != nil:
		return lacks(advice, "looks for containerd at %s, which does not answer (%v)", socket, err)
	case !strings.Contains(version, "+berth."):
		return lacks("If nothing needs containerd: systemctl mask --now containerd, and set containerd_address,\n"+
			"or "+flag+".\n"+restart,
			"asks containerd %s at %s and not Berth", version, socket)
	}
	return good("Berth answers at " + socket + ", where a kubelet's cAdvisor looks for containerd")
}

// statsFromCRI is the feature gate with which a kubelet's cAdvisor looks for no containers.
const statsFromCRI = "PodAndContainerStatsFromCRI"

var statsFromCRIKey = regexp.MustCompile(`(?m)^[^#\n]*` + statsFromCRI + `["']?\s*[:=]\s*["']?true`)

// statsFromCRI says whether the kubelet takes all container metrics from its runtime. What its flags say counts more
// than its file.
func (k kubelet) statsFromCRI(proc string) bool {
	if gates := flagValue(k.args, "--feature-gates"); strings.Contains(gates, statsFromCRI) {
		return statsFromCRIKey.MatchString(gates)
	}
	data, err := k.configuration(proc)
	return err == nil && statsFromCRIKey.Match(data)
}

// containerd is where the kubelet looks for containerd.
func (k kubelet) containerd() string {
	if len(k.args) == 0 {
		return ""
	}
	return cmp.Or(flagValue(k.args, "--containerd"), cadvisorSocket)
}
