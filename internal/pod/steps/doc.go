// Package steps runs the steps of a start or of a creation. Each step has its undo beside it, and Run alone calls
// them: when a step fails, what it and those before it have made is undone in reverse order.
package steps
