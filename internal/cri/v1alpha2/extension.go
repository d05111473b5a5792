package v1alpha2

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"berth/internal/cri/request"
)

// read fills ext with what a message has beyond v1, and notes what cannot be right in any field. Fields that neither v1
// nor ext knows are left alone, as protobuf wants it.
func read[M proto.Message](c *request.Check, p request.Path, in proto.Message, ext M) M {
	if err := proto.Unmarshal(in.ProtoReflect().GetUnknown(), ext); err != nil {
		c.Fail(p, "the fields from 100 on cannot be read: %v", err)
		return ext
	}
	c.Message(p, ext)
	return ext
}

// write adds ext's fields to a message that the caller owns.
func write(out, ext proto.Message) {
	if bytes := marshal(ext); len(bytes) > 0 {
		m := out.ProtoReflect()
		m.SetUnknown(append(m.GetUnknown(), bytes...))
	}
}

// marshal cannot fail: the messages have no required fields, and the model's strings came through an API, and none lets
// a string pass that is not UTF-8. Maps are in order, so that equal answers have equal bytes.
func marshal(m proto.Message) protoreflect.RawFields {
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return bytes
}
