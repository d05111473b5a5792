// Package resolvconf reads the node's resolv.conf(5), and chooses the one whose name servers a pod reaches. Where
// systemd-resolved runs, /etc/resolv.conf names its stub, which listens on a loopback address of the node: from a
// network namespace of its own, a pod does not reach it. The servers that the stub asks are in another file.
package resolvconf
