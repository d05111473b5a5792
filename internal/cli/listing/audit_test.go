package listing

import (
	"strings"
	"testing"
)

func TestALineOfTheAuditIsWordedForPeople(t *testing.T) {
	l, err := ParseAudit([]byte(`{"time":"2026-01-02T03:04:05Z","event":"begin","operation":"exec","namespace":"shop",
		"pod":"web","container":"app","command":["sh","-c","echo \u001b[31m"],"user":"1000","peer":{"pid":7,"uid":0,"gid":0,
		"program":"/usr/bin/kubelet","client":"127.0.0.1:9"}}`))
	if err != nil {
		t.Fatal(err)
	}
	const want = `2026-01-02T03:04:05.000Z  exec          begin  shop/web/app  ["sh" "-c" "echo \x1b[31m"]  as 1000  ` +
		`by /usr/bin/kubelet (PID 7)  from 127.0.0.1:9`
	if got := l.String(); got != want {
		t.Errorf("it is\n%s\nand should be\n%s", got, want)
	}
	end, err := ParseAudit([]byte(`{"time":"2026-01-02T03:04:05Z","event":"end","operation":"port_forward",
		"namespace":"default","pod":"web\u001b","port":80,"error":"refused"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := end.String(); strings.Contains(got, "\x1b") || !strings.HasSuffix(got, "port 80  error: refused") {
		t.Errorf("%q", got)
	}
	if _, err := ParseAudit([]byte("{")); err == nil {
		t.Error("half a line is read")
	}
}
