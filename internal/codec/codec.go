// Package codec has encoding/json and protobuf look at types before a call needs them.
//
// Both build what they need to encode and decode a type when they see its first value, which takes a millisecond or two
// for a specification of a container. This was a sixth of the time of the first pod after a start of berthd.
package codec

import (
	"encoding/json"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// JSON looks at the types of the values, and at all types inside them. A value that cannot be encoded is no error here.
func JSON(values ...any) {
	for _, v := range values {
		_, _ = json.Marshal(v) // decoders use what encoders have found
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
