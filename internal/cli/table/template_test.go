package table

import (
	"math"
	"strings"
	"testing"
)

type sample struct {
	Name  string            `json:"name"`
	Bytes uint64            `json:"bytes"`
	Load  float64           `json:"load"`
	Of    map[string]string `json:"of,omitempty"`
}

func TestTemplatesMakeTextOfTheJSON(t *testing.T) {
	const most = "18446744073709551615" // more than an integer with a sign can hold
	list := []sample{
		{Name: "one", Bytes: 123456789012, Load: 0.5, Of: map[string]string{"app": "web"}},
		{Name: "two", Bytes: math.MaxUint64},
	}
	for format, want := range map[Format]string{
		"jsonpath={[*].name}": "one two\n",
		`jsonpath={range [*]}{.name}{"\t"}{.bytes}{"\n"}{end}`:                 "one\t123456789012\ntwo\t" + most + "\n",
		`jsonpath={[?(@.name=="one")].name}`:                                   "one\n",
		"jsonpath=[0].load":                                                    "0.5\n",
		"jsonpath={[1].none}":                                                  "",
		"go-template={{range .}}{{.name}}={{.bytes}} {{end}}":                  "one=123456789012 two=" + most + " \n",
		"go-template={{range .}}{{with .of}}{{.app}}{{end}}{{end}}":            "web\n",
		"go-template={{(index . 1).none}}":                                     "<no value>\n", // as kubectl prints it
		"go-template={{json (index . 1).name}}":                                `"two"` + "\n",
		`go-template={{range .}}{{if eq .name "two"}}{{.bytes}}{{end}}{{end}}`: most + "\n",
	} {
		var f Format
		if err := f.Set(string(format)); err != nil {
			t.Errorf("%s: %v", format, err)
			continue
		}
		var out strings.Builder
		if err := Print(&out, f, list, []Column[sample]{{Title: "NAME"}}); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v, want %q", format, out.String(), err, want)
		}
		if !f.Structured() || !f.Template() {
			t.Errorf("%s is not for programs", format)
		}
	}
}

func TestATemplateThatIsNoneIsRefused(t *testing.T) {
	for _, text := range []string{
		"jsonpath=", "jsonpath={.name", "go-template=", "go-template={{.name", "go-template={{none .}}",
	} {
		var f Format
		if err := f.Set(text); err == nil {
			t.Errorf("%s is taken", text)
		}
		structured := StructuredFlag{&f}
		if err := structured.Set(text); err == nil {
			t.Errorf("%s is taken where there are no columns", text)
		}
	}
}
