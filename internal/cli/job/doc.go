// Package job runs the pods of a Job until enough of them have succeeded or too many have failed, as its controller does.
package job
