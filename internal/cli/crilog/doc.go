// Package crilog reads container logs in the format of the Container Runtime Interface: a line of
//
//	2016-10-06T00:17:09.669794202Z stdout F the text
//
// for each line that a container wrote, or several tagged P and a last one tagged F for a long one. It joins them
// again, starts at a time or so many lines from the end, and follows a log through its rotation.
package crilog
