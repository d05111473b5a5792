// Package verifier has the node's image verifiers decide which images may be pulled. A verifier is a program that is
// told an image's name and digest, and answers by its exit code. The contract is that of containerd's image verifier
// plugin "bindir" (docs/image-verification.md in containerd), so that the same programs serve both.
//
// Where containerd pulls without a check because the directory is missing or empty, or because it has more programs
// than it may run, this package refuses the image: whoever names a directory wants images to be checked.
package verifier
