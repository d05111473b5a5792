package request

import (
	"errors"
	"strings"

	"berth/internal/model"
)

// Names are how an API calls fields of the model. A field that is not among them has the name of the longest one that
// it is in or below, with the rest of its own: "container.mounts" stands for "container.mounts[2].image" as well.
type Names map[model.Field]Path

// name is how the API calls a field; the model's name where the API has no such field.
func (n Names) name(f model.Field) string {
	for i := len(f); i > 0; i-- {
		if i < len(f) && f[i] != '.' && f[i] != '[' {
			continue
		}
		if p, ok := n[f[:i]]; ok {
			return string(p) + string(f[i:])
		}
	}
	return string(f)
}

// Text is what is said of an error in the words of the API: text, which ends with or holds that of err, with the
// API's name of the field that err is about.
func (n Names) Text(text string, err error) string {
	var field *model.FieldError
	if !errors.As(err, &field) {
		return text
	}
	return strings.Replace(text, string(field.Field)+": ", n.name(field.Field)+": ", 1)
}
