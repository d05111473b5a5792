// Package timeline draws how long each step of a pod's start took, as bars in a terminal or as SVG. The steps come from
// the timings in the verbose status of the runtime.
package timeline
