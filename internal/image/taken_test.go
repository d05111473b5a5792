package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/asroot"
	"berth/internal/jail/jailtest"
	rt "berth/internal/registrytest"
)

// taken makes the fixture's children ones of which an attack has taken over those of one role (jail/testdata/taken).
func (f *fixture) taken(attack string) {
	f.t.Helper()
	j, err := jailtest.New("berth/internal/jail/testdata/taken", "-ldflags", "-X main.attack="+attack)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := j.Close(); err != nil {
			f.t.Error(err)
		}
	})
	f.cfg.Children = ChildrenOf(j)
	f.reopen()
}

// hurry makes the fixture wait for a second only if the attack is one that makes it wait.
func (f *fixture) hurry(attack string) {
	patience := time.Minute
	if strings.Contains(attack, "hangs") || strings.Contains(attack, "crumbs") {
		patience = time.Second
	}
	f.now.Load().unpacker.patience = patience
}

// TestAChildThatIsTakenOverSpoilsOneLayerAtMost: whatever the child does that decompresses or unpacks, its pull ends,
// with an error that says what is wrong, and nothing is left. Seen to fail without the watch (stall.go:
// those that hang, and those that give crumbs with a MiB of patience for each byte), without the digest
// of what was decompressed, without believable, without the tests in attributeCalls and with a writable mount
// of the program (spawner.go), and without the count of what children write (start.go).
func TestAChildThatIsTakenOverSpoilsOneLayerAtMost(t *testing.T) {
	asroot.Need(t, "confined children")
	for attack, want := range map[string]struct {
		kind error
		text string
	}{
		"decompress-hangs":         {errdefs.ErrResourceExhausted, "to decompress did not get on"},
		"decompress-crumbs":        {errdefs.ErrResourceExhausted, "to decompress did not get on"},
		"decompress-lies":          {errdefs.ErrInvalidArgument, "unpacked it has digest"},
		"unpack-hangs":             {errdefs.ErrResourceExhausted, "to unpack did not get on"},
		"unpack-hangs-at-the-end":  {errdefs.ErrResourceExhausted, "to unpack did not get on"},
		"unpack-lies":              {errdefs.ErrInternal, "more than the limits"},
		"unpack-marks-its-program": {unix.EROFS, ""},
		"unpack-marks-a-pipe":      {errdefs.ErrInternal, "a file that it was not given"},
		"unpack-redirects":         {unix.EPERM, ""},
		"unpack-labels":            {unix.EPERM, ""},
		"unpack-fills":             {errdefs.ErrResourceExhausted, "has written more than"},
	} {
		t.Run(attack, func(t *testing.T) {
			f := newFixture(t)
			f.cfg.Limits.Layer.Bytes = 16 << 20
			f.taken(attack)
			f.hurry(attack)
			f.push("a:1", rt.Layer(rt.Random(1, "d", 10, 8<<20)...))
			_, err := f.Pull(context.Background(), PullRequest{Ref: host + "a:1"})
			wantErr(t, err, want.kind, want.text)
			f.eventually("its layer is gone", func() bool { return len(f.layerDirs()) == 0 })
			f.wantNothing()
		})
	}
}

// TestAChildThatMakesAVariantIsTakenOver: those that look at the layers below can change none of them,
// and the one that makes the variant can neither make its layer another one nor lead who uses it elsewhere.
// Seen to fail without Keep and without its second mount, without ReadOnly, onlyHas and openat in makeVariant,
// without the test of names in Placement.nodes, and without the time limit.
func TestAChildThatMakesAVariantIsTakenOver(t *testing.T) {
	asroot.Need(t, "confined children")
	for attack, want := range map[string]struct {
		kind error
		text string
	}{
		"plan-hangs":           {errdefs.ErrResourceExhausted, "took too long"},
		"plan-lies":            {errdefs.ErrInvalidArgument, "../out"},
		"plan-writes":          {nil, "could not write"},
		"make-takes-home":      {errdefs.ErrInternal, "has left"},
		"make-leads-elsewhere": {nil, "open variant: "},
	} {
		t.Run(attack, func(t *testing.T) {
			f := newFixture(t)
			f.taken(attack)
			lower := rt.Layer(rt.Dir("b", 0o711), rt.Symlink("a", "b"))
			upper := rt.Layer(rt.File("a/f", 0o644, "f"))
			f.push("honest:1", upper) // which has the layer as it is
			id := f.pull("honest:1")
			held, err := f.AddReference(id, "test")
			if err != nil {
				t.Fatal(err)
			}
			home := filepath.Dir(held.Dirs[0])
			record, err := os.ReadFile(filepath.Join(home, layerFileName))
			if err != nil {
				t.Fatal(err)
			}
			f.hurry(attack)
			f.push("a:1", lower, upper)
			_, err = f.Pull(context.Background(), PullRequest{Ref: host + "a:1"})
			if err == nil || !strings.Contains(err.Error(), want.text) || want.kind != nil && !errors.Is(err, want.kind) {
				t.Errorf("%v, want %q", err, want.text)
			}
			if again, err := os.ReadFile(filepath.Join(home, layerFileName)); err != nil || string(again) != string(record) {
				t.Errorf("the layer's record is %q, %v", again, err)
			}
			if info, err := os.Lstat(filepath.Join(home, layerFS)); err != nil || !info.IsDir() {
				t.Errorf("the layer is %v, %v", info, err)
			}
			if data, err := os.ReadFile(filepath.Join(home, layerFS, "a/f")); err != nil || string(data) != "f" {
				t.Errorf("its file is %q, %v", data, err)
			}
		})
	}
}
