// Package steps runs the steps of RunPodSandbox, StartPodSandbox and CreateContainer. Each step has its undo beside it,
// and only Run calls them: if a step fails, Run undoes this step and all earlier ones, in reverse order.
package steps
