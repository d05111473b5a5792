package codec_test

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/codec"
)

type outer struct {
	Inner []inner        `json:"inner,omitempty"`
	More  map[string]any `json:"more"`
}

type inner struct {
	Own  *outer `json:"own,omitempty"`
	Text string
}

// TestATypeThatWasLookedAtIsEncodedWithoutAllocatingForIt counts what the first encoding of a type allocates. Seen to
// fail where JSON and Messages do nothing: some hundred allocations each.
func TestATypeThatWasLookedAtIsEncodedWithoutAllocatingForIt(t *testing.T) {
	codec.JSON(outer{})
	codec.Messages(&cri.CreateContainerRequest{})
	first := func(work func()) float64 {
		counted := false // AllocsPerRun calls its function once before it counts
		return testing.AllocsPerRun(1, func() {
			if counted {
				work()
			}
			counted = true
		})
	}
	if n := first(func() { _, _ = codec.Marshal(outer{Inner: []inner{{}}}) }); n > 20 {
		t.Errorf("JSON: %v allocations", n)
	}
	in := &cri.CreateContainerRequest{Config: &cri.ContainerConfig{Linux: &cri.LinuxContainerConfig{
		SecurityContext: &cri.LinuxContainerSecurityContext{Seccomp: &cri.SecurityProfile{}}}}}
	if n := first(func() {
		b, _ := proto.Marshal(in)
		_ = proto.Unmarshal(b, &cri.CreateContainerRequest{})
	}); n > 20 {
		t.Errorf("protobuf: %v allocations", n)
	}
}

// TestJSONFollowsTheRulesOfEncodingJSON, with which earlier versions write and read the same records. Seen to fail with
// the rules of the next version of encoding/json: of letters, names that occur twice, durations and broken texts.
func TestJSONFollowsTheRulesOfEncodingJSON(t *testing.T) {
	type inner struct{ Time time.Time }
	type record struct {
		Name   string            `json:"name,omitempty"`
		List   []inner           `json:"list"`
		Map    map[int]*inner    `json:"map"`
		Raw    json.RawMessage   `json:"raw"`
		Any    any               `json:"any"`
		Bytes  []byte            `json:"bytes"`
		Array  [3]byte           `json:"array"`
		Wait   time.Duration     `json:"wait"`
		Addr   netip.Addr        `json:"addr"`
		Labels map[string]string `json:"labels"`
		Quoted int64             `json:"quoted,string"`
	}
	for _, text := range []string{
		`{"name":"a","list":[{"Time":"2026-11-26T21:45:44.5Z"},{}],"map":{"1":null,"-2":{}},"any":{"y":1.5}}`,
		`{"raw":{"x": [1, 2]}}`,
		`{"NAME":"upper","Labels":{"a":"b","c":""},"unknown":{"deep":[{}]}}`, `{"name":"one","name":"two","wait":1500000000}`,
		`{"bytes":"AAEC","array":[1,2,3],"addr":"fe80::1%eth0","quoted":"-12"}`, `{"array":[1]}`, `{"array":[1,2,3,4]}`,
		`{"name":null,"list":null,"map":null,"labels":null,"raw":null,"any":null}`, "{\"name\":\"bad \xff text\"}",
		`{"name":"\ud800 half"}`, ` {"name":"space"}   `, `null`, `{}`, `{"Name":"a","nAME":"b"}`, `{"list":{}}`,
		`{"name":1}`,
		`{"wait":"1s"}`, `{"quoted":12}`, `{"name":"cut`, `{"name":"a"}{}`, `{"name":"a"} x`, `[]`, ``, `{"addr":"none"}`,
		`{"bytes":"not base64!"}`, `{"name":"a",}`, `{'name':'a'}`, `{"any":1e400}`,
		`{"name":"<a>&\u2028","any":{"z":1,"a":[1e21,0.000001,-0.0,1e-7]},"raw":{"h":"<"}}`,
	} {
		var want, got record
		wantErr, err := json.Unmarshal([]byte(text), &want), codec.Unmarshal([]byte(text), &got)
		if (wantErr == nil) != (err == nil) || err == nil && !reflect.DeepEqual(want, got) {
			t.Errorf("%q: %+v, %v; encoding/json: %+v, %v", text, got, err, want, wantErr)
		}
		wantText, wantErr := json.Marshal(want)
		gotText, err := codec.Marshal(want)
		if !bytes.Equal(wantText, gotText) || (wantErr == nil) != (err == nil) {
			t.Errorf("%+v: %s, %v; encoding/json: %s, %v", want, gotText, err, wantText, wantErr)
		}
	}
}
