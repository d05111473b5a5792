// Package plan translates an OCI specification into libcontainer's configuration, and that into a plan for the stage.
//
// fields.go lists the fields that the stage supports. It has an entry for each field of libcontainer's configuration
// and of the specification. If a container sets a field that the stage does not support, libcontainer sets up the
// container. A field that no engine supports is refused.
package plan
