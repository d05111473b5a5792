// Package nri lets plugins of the Node Resource Interface (NRI) watch pods and containers, and change containers:
// programs that berthd starts, and programs that connect to its socket. It translates between the domain's data and
// NRI's protocol, keeps plugins in their limits of time, and tells each of them once of each pod and container. What a
// plugin asks for is done by the domain.
//
// The library github.com/containerd/nri has the protocol, the order of plugins, the merge of what they ask for and the
// default validator.
package nri
