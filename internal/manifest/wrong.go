package manifest

import (
	"encoding/base64"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// wrongValues returns an error for each value of a document that its type does not take, with the path of the field. It
// is for documents that could not be decoded: the decoder's own error has the names of Go's types, and that of a
// quantity has not even the field. It is empty if every value by itself can be decoded.
func wrongValues(data []byte, of reflect.Type) []error {
	var value any
	if err := stdjson.Unmarshal(data, &value); err != nil {
		return nil
	}
	w := wrongWalk{quote: of != reflect.TypeFor[corev1.Secret]()}
	w.value("", value, of)
	return w.errs
}

// wrongWalk collects the values of a document that their types do not take.
type wrongWalk struct {
	quote bool // values may be in errors
	errs  []error
}

var unmarshaler = reflect.TypeFor[stdjson.Unmarshaler]()

func (w *wrongWalk) value(path string, value any, of reflect.Type) {
	if value == nil {
		return
	}
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if !reflect.PointerTo(of).Implements(unmarshaler) {
		switch of.Kind() {
		case reflect.Struct:
			if object, ok := value.(map[string]any); ok {
				for _, field := range jsonFields(of) {
					w.value(strings.TrimPrefix(path+"."+field.name, "."), object[field.name], field.of)
				}
				return
			}
		case reflect.Map:
			if object, ok := value.(map[string]any); ok {
				for _, key := range sortedKeys(object) {
					w.value(path+"."+key, object[key], of.Elem())
				}
				return
			}
		case reflect.Slice:
			if list, ok := value.([]any); ok {
				for i, item := range list {
					w.value(fmt.Sprintf("%s[%d]", path, i), item, of.Elem())
				}
				return
			}
		}
	}
	text, err := stdjson.Marshal(value)
	if err == nil {
		err = stdjson.Unmarshal(text, reflect.New(of).Interface())
	}
	if err != nil {
		w.errs = append(w.errs, fmt.Errorf("%s: %w", path, w.plainError(string(text), of, err)))
	}
}

type jsonField struct {
	name string
	of   reflect.Type
}

// jsonFields are the fields of a struct as JSON has them, those of embedded structs included.
func jsonFields(of reflect.Type) []jsonField {
	var out []jsonField
	for field := range of.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "" && (field.Anonymous || strings.Contains(options, "inline")) && field.Type.Kind() == reflect.Struct:
			out = append(out, jsonFields(field.Type)...)
		case name != "" && name != "-":
			out = append(out, jsonField{name, field.Type})
		}
	}
	return out
}

func sortedKeys(object map[string]any) []string {
	keys := make([]string, 0, len(object))
	for key := range object {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// plainError says what is wrong with a value without the names of Go's types. text is the value as JSON.
func (w *wrongWalk) plainError(text string, of reflect.Type, err error) error {
	const most = 64 // bytes: a value may be as long as the document
	var corrupt base64.CorruptInputError
	switch {
	case !w.quote:
		text = "the value"
	case len(text) > most:
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	if errors.As(err, &corrupt) {
		return fmt.Errorf("%s is not base64", text)
	}
	if of == reflect.TypeFor[resource.Quantity]() {
		return fmt.Errorf("%s is no quantity such as 500m or 64Mi", text)
	}
	var mismatch *stdjson.UnmarshalTypeError
	if !errors.As(err, &mismatch) {
		return fmt.Errorf("%s: %w", text, err)
	}
	want := "an object"
	switch of.Kind() {
	case reflect.String:
		want = "a string"
	case reflect.Bool:
		want = "true or false"
	case reflect.Slice, reflect.Array:
		want = "a list"
		if of.Elem().Kind() == reflect.Uint8 {
			want = "a text in base64"
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		want = fmt.Sprintf("a whole number of %d bits", of.Bits())
	case reflect.Float32, reflect.Float64:
		want = "a number"
	}
	return fmt.Errorf("%s is not %s", text, want)
}
