// Package cadvisor has the metrics of pods and containers with cAdvisor's names, labels and meanings. A kubelet with
// PodAndContainerStatsFromCRI exports the runtime's metrics instead of cAdvisor's, and dashboards and alerts rely on
// cAdvisor's names.
//
// The CRI carries only whole numbers, so values in seconds lose their fraction. Metrics for which the kernel has no
// value on a cgroup version are left out.
package cadvisor
