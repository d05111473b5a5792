// Package nri connects plugins of the Node Resource Interface (NRI), which watch pods and containers and may change
// containers. berthd starts a plugin, or a plugin connects to berthd's socket. The package translates between package
// model and NRI's protocol, enforces the plugins' time limits, and makes sure that each plugin learns of each pod and
// container exactly once. The caller makes the changes that plugins ask for.
//
// The library github.com/containerd/nri has the protocol, the order of plugins, the merge of their changes, and the
// default validator.
package nri
