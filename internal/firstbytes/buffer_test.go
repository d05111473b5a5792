package firstbytes

import (
	"os/exec"
	"testing"
)

// TestAProgramThatPrintsMuchFillsNoMemory. Seen to fail with a bytes.Buffer embedded, whose ReadFrom took all of it.
func TestAProgramThatPrintsMuchFillsNoMemory(t *testing.T) {
	for printed, over := range map[string]bool{"123": false, "12345": false, "123456": true, "1234567890": true} {
		b := &Buffer{Left: 5}
		cmd := exec.Command("printf", "%s", printed)
		cmd.Stdout = b
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		if want := printed[:min(len(printed), 5)]; b.String() != want || string(b.Bytes()) != want || b.Over != over {
			t.Errorf("of %q it kept %q, more: %v", printed, b, b.Over)
		}
	}
}
