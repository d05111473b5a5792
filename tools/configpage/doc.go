// Package configpage writes docs/configuration.md from the default file of the configuration, which documents every
// key. Its test fails where the page is another.
//
// After a change of the default file, go generate writes the page anew.
package configpage

//go:generate go test -run TestThePageIsThatOfTheDefaultFile -update .
