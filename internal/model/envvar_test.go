package model

import (
	"encoding/json"
	"reflect"
	"testing"
)

// TestAVariableKeepsItsBytesInJSON: of a record, for example.
func TestAVariableKeepsItsBytesInJSON(t *testing.T) {
	in := Environment{
		{Key: "A", Value: "<&\"\u2028\n"}, {Key: "B", Value: "b=\xff\xfe"}, {Key: "C"}, {Key: "D", Value: "\ufffd"},
	}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out Environment
	if err := json.Unmarshal(b, &out); err != nil || !reflect.DeepEqual(out, in) {
		t.Errorf("%s: %q, %v", b, out, err)
	}
	type earlier struct{ Key, Value string }
	var old []earlier
	if err := json.Unmarshal(b, &old); err != nil || old[1] != (earlier{"B", "b=\ufffd\ufffd"}) {
		t.Errorf("an earlier version reads %q, %v", old, err)
	}
}
