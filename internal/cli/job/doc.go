// Package job runs the pods of a Job until enough of them have succeeded or too many have failed, as a Job controller
// does.
package job
