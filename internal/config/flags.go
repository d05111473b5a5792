package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// field is a key that a flag can override.
type field struct {
	key    string // network.pod_cidr
	flag   string // pod-cidr
	index  []int  // of the field in Config
	kind   reflect.Type
	reload bool // a running berthd takes a new value
}

// fields are all keys but those of runtimes, which are as many as the file says.
func fields() []field {
	var out []field
	var walk func(t reflect.Type, prefix string, index []int)
	walk = func(t reflect.Type, prefix string, index []int) {
		for i := range t.NumField() {
			f := t.Field(i)
			at := append(index[:len(index):len(index)], i)
			key := prefix + f.Tag.Get("toml")
			switch {
			case f.Type.Kind() == reflect.Map:
			case f.Type.Kind() == reflect.Struct:
				walk(f.Type, key+".", at)
			default:
				flag := f.Tag.Get("flag")
				if flag == "" {
					flag = strings.ReplaceAll(key, "_", "-")
				}
				out = append(out, field{
					key: key, flag: flag, index: at, kind: f.Type, reload: f.Tag.Get("reload") != "",
				})
			}
		}
	}
	walk(reflect.TypeFor[Config](), "", nil)
	return out
}

// keys are the keys of the configuration, for saying what somebody may have meant.
func keys() []string {
	var out []string
	for _, f := range fields() {
		out = append(out, f.key)
	}
	for i := range reflect.TypeFor[Config]().NumField() {
		out = append(out, reflect.TypeFor[Config]().Field(i).Tag.Get("toml"))
	}
	return out
}

// Overrides are values that were given as flags. A nil *Overrides has none.
type Overrides struct {
	values map[string]*override // by key
}

// Bind adds a flag for every key to a set; what is parsed into them is found in the Overrides.
func Bind(set *pflag.FlagSet) *Overrides {
	o := &Overrides{values: map[string]*override{}}
	docs := documentation()
	defaults := reflect.ValueOf(Default()).Elem()
	for _, f := range fields() {
		v := &override{field: f, value: reflect.New(f.kind).Elem()}
		v.value.Set(defaults.FieldByIndex(f.index))
		o.values[f.key] = v
		flag := set.VarPF(v, f.flag, "", summary(docs[f.key]))
		if f.kind.Kind() == reflect.Bool {
			flag.NoOptDefVal = "true"
		}
	}
	return o
}

func (o *Overrides) apply(c *Config) {
	if o == nil {
		return
	}
	for _, v := range o.values {
		if v.set {
			reflect.ValueOf(c).Elem().FieldByIndex(v.field.index).Set(v.value)
		}
	}
}

// flag returns the flag that a key's value came from.
func (o *Overrides) flag(key string) (string, bool) {
	if o == nil {
		return "", false
	}
	v, ok := o.values[key]
	if !ok || !v.set {
		return "", false
	}
	return v.field.flag, true
}

// override is a pflag.Value.
type override struct {
	field field
	value reflect.Value
	set   bool
}

// Set takes a value as the file has it, without quotes. A list is given with commas, or by the flag several times.
func (v *override) Set(s string) error {
	if t, ok := v.value.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if err := t.UnmarshalText([]byte(s)); err != nil {
			return err
		}
		v.set = true
		return nil
	}
	switch v.value.Kind() {
	case reflect.String:
		v.value.SetString(s)
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is no whole number", s)
		}
		v.value.SetInt(n)
	case reflect.Bool:
		b, err := strconv.ParseBool(s)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", s)
		}
		v.value.SetBool(b)
	case reflect.Slice: // of strings
		list := []string{}
		if v.set {
			list = append(list, v.value.Interface().([]string)...)
		}
		for part := range strings.SplitSeq(s, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = append(list, part)
			}
		}
		v.value.Set(reflect.ValueOf(list))
	default:
		return fmt.Errorf("%s cannot be given as a flag", v.field.key)
	}
	v.set = true
	return nil
}

func (v *override) String() string {
	if !v.value.IsValid() {
		return "" // pflag asks a zero value for its default
	}
	switch x := v.value.Interface().(type) {
	case []string:
		return strings.Join(x, ",")
	case Duration:
		return x.String()
	}
	return fmt.Sprint(v.value.Interface())
}

// Type is the word that help shows in place of the value.
func (v *override) Type() string {
	switch v.value.Interface().(type) {
	case []string:
		return "list"
	case Duration:
		return "duration"
	}
	return strings.TrimSuffix(v.value.Kind().String(), "64")
}
