// Package cdi finds devices of the Container Device Interface in their specification files and adds them to OCI
// specifications. It reads the files again for each call. Errors name the file and the line.
package cdi
