package dockerauth

import (
	"encoding/json"
	"errors"
	"os"
)

// Parse reads the auths of a config.json that is not the user's own, such as that of a Secret. Its credential helpers
// are left out: they are programs.
func Parse(data []byte) (*File, error) {
	if len(data) > maxFile {
		return nil, errors.New("the credentials are too large")
	}
	var content struct {
		Auths map[string]entry `json:"auths"`
	}
	if json.Unmarshal(data, &content) != nil { // its error may quote the data
		return nil, errors.New("the credentials are no config.json of docker's kind")
	}
	return &File{auths: content.Auths, mode: os.FileMode(0o600)}, nil
}
