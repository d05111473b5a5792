package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// asProgram has the test's own binary be the program.
const asProgram = "BERTH_TEST_UNPACK"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// TestAPersonIsToldWhoRunsTheProgram. Seen to fail for flags, which were answered in JSON, with another version of
// berthd as the reason.
func TestAPersonIsToldWhoRunsTheProgram(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"-v"}} {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		var out, complaint bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &complaint
		err := cmd.Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || out.Len() > 0 ||
			!strings.HasPrefix(complaint.String(), "berth-unpack: berthd runs this program") {
			t.Errorf("%v: %v, %q, %q", args, err, out.String(), complaint.String())
		}
	}
}
