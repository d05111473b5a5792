// Package crifields knows what becomes of every field of every request of CRI v1. It writes docs/cri-v1.md from the
// interface's descriptors and its own list; its tests fail where the interface has a call or a field that the list
// does not know, and where the list names a test that does not exist.
//
// It writes docs/older-apis.md, too: the same for the older APIs, and what iSulad's document has.
//
// After a change of the list, go generate writes the page anew.
package crifields

//go:generate go test -tags seccomp -run PageIsOf -update .
