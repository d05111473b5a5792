// Package launch makes pods of manifests through a runtime: it pulls their images, makes their sandboxes and volumes,
// and starts their containers. It waits for containers to end, and stops and removes pods. What is done for containers
// while they run is in package supervisor.
package launch
