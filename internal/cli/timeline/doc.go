// Package timeline draws where the time of a start went, as a waterfall: a bar for each step, in a terminal or as SVG.
// Steps are what a runtime's verbose status calls timings.
package timeline
