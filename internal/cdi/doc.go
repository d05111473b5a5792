// Package cdi finds devices of the Container Device Interface in their specification files, which it reads again
// whenever it is asked, and adds them to OCI specs. What is wrong is said with the file and the line.
package cdi
