package model

// ExecAs is what an exec has otherwise than its container's first process. Zero values are that process's own.
type ExecAs struct {
	User string   // name or number[:group], as in an image's configuration
	Env  []string // NAME=value; a name that is there already gets the new value
	Cwd  string   // an absolute path in the container
}
