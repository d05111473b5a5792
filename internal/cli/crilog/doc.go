// Package crilog reads container logs in the format of the Container Runtime Interface. Each line that a container
// wrote is a record like
//
//	2016-10-06T00:17:09.669794202Z stdout F the text
//
// A long line is split into several records with the tag P and a last one with the tag F; the package joins them again.
// It starts at a given time or a number of lines from the end, and follows a log through its rotation.
package crilog
