package metricspage

import (
	"fmt"
	"strings"

	"berth/internal/metrics"
)

const head = `# Metrics

` + "`[metrics] address`" + ` in the configuration, such as ` + "`127.0.0.1:9920`" + `, has berthd serve metrics for Prometheus at
` + "`/metrics`" + `, over plain HTTP. Without it nothing is measured. With it a call costs a microsecond more, and each step of a start
a tenth of one; states, sizes and the keeper's numbers are read when Prometheus asks.

This page is made from the code.

## Dashboard and alerts

` + "`packaging/monitoring`" + ` has a dashboard for Grafana (` + "`dashboard.json`" + `, to import) and alerts for Prometheus
(` + "`alerts.yaml`" + `, for ` + "`rule_files`" + `). Both take the scrape job to be named ` + "`berth`" + `:

    rule_files: [alerts.yaml]
    scrape_configs:
      - job_name: berth
        static_configs:
          - targets: ["node1:9920"]

` + "`make metrics`" + ` has a real Prometheus scrape a node on which pods run, pulls fail and a container is killed for want of
memory, and each query of both find its series there.

## Berth's own

Names are kept [within a major version](../RELEASES.md). A label whose values come from outside (registries, CNI plugins) has at most 32
of them, and ` + "`other`" + ` for the rest. The reasons of errors are ` + "`canceled`, `deadline_exceeded`, `unauthenticated`," + `
` + "`permission_denied`, `resource_exhausted`, `invalid_argument`, `not_found`, `failed_precondition`, `unavailable` and `unknown`" + `.

The last two columns have what containerd and CRI-O say of the same thing, as closely as they do.

| metric | type | labels | | containerd | CRI-O |
|---|---|---|---|---|---|
`

const tail = `
## Shared with other programs

| metric | type | labels | | containerd | CRI-O |
|---|---|---|---|---|---|
| ` + "`grpc_server_started_total`" + ` | counter | ` + "`grpc_type`, `grpc_service`, `grpc_method`" + ` | Calls that began. | the same | |
| ` + "`grpc_server_handled_total`" + ` | counter | the same, ` + "`grpc_code`" + ` | Calls that ended, by the code that the client got. | the same | |
| ` + "`grpc_server_handling_seconds`" + ` | histogram | ` + "`grpc_type`, `grpc_service`, `grpc_method`" +
	` | How long they took. | the same, where its configuration asks for it | |
| ` + "`grpc_server_msg_received_total`, `grpc_server_msg_sent_total`" + ` | counter | the same | Messages of streams. | the same | |
| ` + "`go_*`, `process_*`" + ` | | | Goroutines, memory, processor time and descriptors of berthd. | the same | the same |

Figures of each pod and container are not here: a kubelet serves them at ` + "`/metrics/cadvisor`" + `, from
[the CRI](cri-v1.md) or from [containerd's API](containerd-api.md).

## Notes

- The log's and the keeper's counters begin at 0 when the keeper is upgraded in place or started anew. With a keeper that is older than
  these metrics they are missing, while ` + "`berth_keeper_up`" + ` is 1.
- ` + "`berth_cri_*` and `grpc_server_*`" + ` count the same calls. The second are there for dashboards that know them.
- The step of a start is named as ` + "`berth timeline`" + ` names it.
- The age of readings is that of ready pods and running containers. Nothing is read while nobody asks for statistics.
`

// page is docs/metrics.md.
func page() string {
	var b strings.Builder
	b.WriteString(head)
	for _, d := range metrics.All() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n",
			code(d.Name), d.Type, code(d.Labels...), d.Help, code(split(d.Containerd)...), code(split(d.CRIO)...))
	}
	b.WriteString(tail)
	return b.String()
}

func split(names string) []string {
	if names == "" {
		return nil
	}
	return strings.Split(names, ", ")
}

// code is a list of names as the page has them.
func code(names ...string) string {
	if len(names) == 0 {
		return ""
	}
	return "`" + strings.Join(names, "`, `") + "`"
}
