// Package supervisor runs the containers of a pod as a kubelet does, for as long as the command lives: init containers
// one after another, restarts with a back-off, probes, hooks and the rotation of logs. With Once it only starts the
// pod.
package supervisor
