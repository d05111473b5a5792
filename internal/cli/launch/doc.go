// Package launch runs pods of manifests through a runtime. It pulls their images, makes their sandboxes, runs their
// init containers in order and starts the other containers. It waits for containers to end, and stops and removes pods.
// It does this once: unlike a kubelet, it does not watch pods and does not restart containers.
package launch
