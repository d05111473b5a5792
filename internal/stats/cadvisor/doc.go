// Package cadvisor knows the metrics of pods and containers under the names, labels and meanings that cAdvisor
// gave them: a kubelet with PodAndContainerStatsFromCRI exports what a runtime gives it in place of cAdvisor's,
// and people's dashboards and alerts are written against those names.
//
// The interface carries whole numbers only, so that what is in seconds here loses its fraction. What cAdvisor knows and
// the kernel does not say on a cgroup version is left out; nothing is made up.
package cadvisor
