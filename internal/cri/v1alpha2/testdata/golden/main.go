// Program golden prints a message of each kind of runtime.v1alpha2 as Kubernetes 1.25 writes it, and the calls:
//
//	go run . >../kubernetes-1.25.txt
//
// Each field holds what its number and name make of it: a string its name, a number its number, a list two of them.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/gogo/protobuf/proto"
	descpb "github.com/gogo/protobuf/protoc-gen-gogo/descriptor"
	v1alpha2 "k8s.io/cri-api/pkg/apis/runtime/v1alpha2"
)

func tag(f reflect.StructField) (num int, name string) {
	for _, p := range strings.Split(f.Tag.Get("protobuf"), ",") {
		if n, ok := strings.CutPrefix(p, "name="); ok {
			name = n
		}
	}
	fmt.Sscanf(strings.Split(f.Tag.Get("protobuf"), ",")[1], "%d", &num)
	return
}

func scalar(v reflect.Value, num int, name string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(name)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32:
		if v.Type().Name() != "int32" {
			v.SetInt(1)
		} else {
			v.SetInt(int64(num))
		}
	case reflect.Int64:
		v.SetInt(int64(num) << 33)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(num))
	case reflect.Float64, reflect.Float32:
		v.SetFloat(float64(num))
	case reflect.Slice:
		v.SetBytes([]byte(name))
	default:
		panic(v.Kind().String())
	}
}

func fill(v reflect.Value) {
	t := v.Type()
	for i := 0; i < t.NumField(); i++ {
		f := t.Field(i)
		if f.Tag.Get("protobuf") == "" {
			continue
		}
		num, name := tag(f)
		fv := v.Field(i)
		switch {
		case f.Type.Kind() == reflect.Ptr:
			fv.Set(reflect.New(f.Type.Elem()))
			fill(fv.Elem())
		case f.Type.Kind() == reflect.Map:
			fv.Set(reflect.MakeMap(f.Type))
			val := reflect.New(f.Type.Elem()).Elem()
			if f.Type.Elem().Kind() == reflect.Ptr {
				val.Set(reflect.New(f.Type.Elem().Elem()))
				fill(val.Elem())
			} else {
				scalar(val, num, name)
			}
			fv.SetMapIndex(reflect.ValueOf("key"), val)
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Ptr:
			e := reflect.New(f.Type.Elem().Elem())
			fill(e.Elem())
			fv.Set(reflect.Append(fv, e))
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() != reflect.Uint8:
			for range 2 {
				e := reflect.New(f.Type.Elem()).Elem()
				scalar(e, num, name)
				fv.Set(reflect.Append(fv, e))
			}
		default:
			scalar(fv, num, name)
		}
	}
}

func main() {
	_ = v1alpha2.VersionRequest{}
	gz := proto.FileDescriptor("api.proto")
	r, err := gzip.NewReader(bytes.NewReader(gz))
	if err != nil {
		panic(err)
	}
	b, _ := io.ReadAll(r)
	fd := &descpb.FileDescriptorProto{}
	if err := proto.Unmarshal(b, fd); err != nil {
		panic(err)
	}
	for _, m := range fd.MessageType {
		full := "runtime.v1alpha2." + m.GetName()
		t := proto.MessageType(full)
		v := reflect.New(t.Elem())
		fill(v.Elem())
		out, err := proto.Marshal(v.Interface().(proto.Message))
		if err != nil {
			panic(err)
		}
		fmt.Println(full, hex.EncodeToString(out))
	}
	for _, s := range fd.Service {
		for _, m := range s.Method {
			fmt.Printf("/runtime.v1alpha2.%s/%s %s %s\n", s.GetName(), m.GetName(), strings.TrimPrefix(m.GetInputType(),
				".runtime.v1alpha2."), strings.TrimPrefix(m.GetOutputType(), ".runtime.v1alpha2."))
		}
	}
}
