// Package plan translates: what a specification asks for into libcontainer's configuration, and that into what the
// stage does.
//
// What the stage does is a list of fields that it knows (fields.go): each field of libcontainer's configuration and of
// the specification has a decision. A field that is set and that has none sends the container to libcontainer. What no
// engine heeds is refused.
package plan
