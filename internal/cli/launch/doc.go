// Package launch runs pods of manifests through a runtime: it pulls their images, makes their sandboxes, runs
// their init containers in order and starts the rest; it waits for containers to end, and it stops and removes pods.
// It does what a kubelet does for a pod once; it watches over nothing and restarts nothing.
package launch
