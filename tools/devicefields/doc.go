// Package devicefields knows what each side of Berth does with every call and field of the device plugin API.
// It writes the tables of docs/devices.md from the interface's descriptors and its own list, below what intro.md says;
// its tests fail where the interface has something that the list does not know, and where the list names a test
// that does not exist.
package devicefields

//go:generate go test -run TestThePageIsOfThisList -update .
