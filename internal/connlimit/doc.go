// Package connlimit bounds how many strangers are connected to a server: connections whose clients have not shown yet
// that they may be there. Where one more comes, the oldest of the address with the most is closed, so that a flood of
// strangers takes neither memory nor descriptors without end, and keeps nobody out who soon shows what he has.
package connlimit
