// Package codec encodes and decodes JSON in half of the time of encoding/json, and has the encoders of JSON and of
// protobuf look at types before a call needs them.
//
// They build what they need to encode and decode a type when they see its first value, which takes a millisecond or two
// for a specification of a container. This was a sixth of the time of the first pod after a start of berthd.
package codec

import (
	"reflect"

	jsonv2 "github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Marshal is json.Marshal by the next version of encoding/json, with the rules of this one: the result is the same.
// Records, specifications and the keeper's packets are encoded at each start of a container, and at a start of berthd.
func Marshal(v any) ([]byte, error) { return jsonv1.Marshal(v) }

// Unmarshal is json.Unmarshal, likewise, where data fits. Where it does not, there is an error in both, but v has been
// filled up to there: what is in it is of no use. So data is gone through only once.
func Unmarshal(data []byte, v any) error { return jsonv2.Unmarshal(data, v, once) }

// once are the rules of encoding/json, without the one that all of the data is checked before any of it is used.
var once = jsonv2.JoinOptions(jsonv1.DefaultOptionsV1(), jsonv1.ReportErrorsWithLegacySemantics(false))

// JSON has Marshal and Unmarshal look at the types of the values, and at all types inside them. A type that cannot be
// encoded is no error here.
func JSON(values ...any) {
	known := map[reflect.Type]bool{}
	for _, v := range values {
		lookAt(reflect.TypeOf(v), known)
	}
}

// lookAt encodes and decodes an empty value of each struct type: what is inside a nil pointer or an empty list is not
// looked at with what has it.
func lookAt(t reflect.Type, known map[reflect.Type]bool) {
	if known[t] {
		return
	}
	known[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		lookAt(t.Elem(), known)
	case reflect.Struct:
		v := reflect.New(t).Interface()
		_, _ = Marshal(v)
		_ = Unmarshal([]byte("{}"), v)
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() {
				lookAt(f.Type, known)
			}
		}
	}
}

// Messages looks at the types of the messages, and at those of all fields inside them.
func Messages(messages ...proto.Message) {
	known := map[protoreflect.FullName]bool{}
	for _, m := range messages {
		look(m.ProtoReflect(), known)
	}
}

func look(m protoreflect.Message, known map[protoreflect.FullName]bool) {
	name := m.Descriptor().FullName()
	if known[name] {
		return
	}
	known[name] = true
	_ = proto.Unmarshal(nil, m.Interface())
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case f.IsMap():
			if f.MapValue().Message() != nil {
				look(m.NewField(f).Map().NewValue().Message(), known)
			}
		case f.Message() == nil:
		case f.IsList():
			look(m.NewField(f).List().NewElement().Message(), known)
		default:
			look(m.NewField(f).Message(), known)
		}
	}
}
