package logpart

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPartsAreThoseOfAKubeletAndOfBerthInTheOrderOfTheirTimes(t *testing.T) {
	at := time.Date(2026, 1, 31, 12, 0, 1, 5000, time.Local)
	own := Name("0.log", at)
	if own != "0.log.20260131-120001.000005" {
		t.Errorf("a part is named %s", own)
	}
	names := []string{
		own, "0.log", "0.log.20260131-120001", "0.log.20260131-115959.gz", "0.log.20260131-115959",
		"0.log.20260131-120000.gz.tmp", "0.log.20260131-120000.tmp", "0.log.1", "0.log.20260131", "1.log.20260131-120000",
		"0.log.d.20260131-120000",
	}
	want := []string{"0.log.20260131-115959", "0.log.20260131-120001", own}
	got := Of("0.log", names)
	for i := range got {
		got[i] = strings.TrimSuffix(got[i], ".gz")
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// write makes a log and returns its file.
func write(t *testing.T, path, text string) *os.File {
	t.Helper()
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	return f
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestAPartIsNeverRenamedOver, though the clock stands still.
func TestAPartIsNeverRenamedOver(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	at := time.Now()
	file := write(t, path, "0")
	var parts []string
	for range 5 {
		rotated, err := Rotate(path, file, at)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, rotated.Part)
		file = rotated.File
		defer file.Close()
		if _, err := file.WriteString("x"); err != nil {
			t.Fatal(err)
		}
	}
	if got := Of("0.log", list(t, dir)); !slices.Equal(got, parts) || len(slices.Compact(parts)) != 5 {
		t.Errorf("there are %q, and %q were made", got, parts)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm()&^0o640 != 0 {
		t.Errorf("the new file: %v, %v", st, err)
	}
}

// TestTheNewestPartIsTheLastThoughTheClockGoesBack: the parts that are removed are the oldest all the same.
func TestTheNewestPartIsTheLastThoughTheClockGoesBack(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	file := write(t, path, "0")
	var parts []string
	for i, minute := range []int{40, 41, 59, 1, 2, 1} {
		at := time.Date(2026, 10, 25, 2, minute, 59, 999999000, time.Local)
		rotated, err := Rotate(path, file, at)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, rotated.Part)
		file = rotated.File
		defer file.Close()
		if _, err := fmt.Fprint(file, i+1); err != nil {
			t.Fatal(err)
		}
	}
	if got := Of("0.log", list(t, dir)); !slices.Equal(got, parts) {
		t.Errorf("the order of the parts is %q, and they were made in this order: %q", got, parts)
	}
	if _, err := Prune(path, 2); err != nil {
		t.Fatal(err)
	}
	left := ""
	for _, part := range Of("0.log", list(t, dir)) {
		left += read(t, filepath.Join(dir, part))
	}
	if left != "45" {
		t.Errorf("the parts that are left have %q, want the last two, 45", left)
	}
}

func TestThePartThatIsMadeNextIsTheLast(t *testing.T) {
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.Local)
	for newest, want := range map[string]string{
		"0.log.20260131-115959":            "0.log.20260131-120000.000000",
		"0.log.20260131-120000":            "0.log.20260131-120000.000000",
		"0.log.20260131-130000":            "0.log.20260131-130000.000001",
		"0.log.20260131-130000.gz":         "0.log.20260131-130000.000001",
		"0.log.20260131-130000.5":          "0.log.20260131-130000.500001",
		"0.log.20260131-130000.123456789":  "0.log.20260131-130000.123457",
		"0.log.20261231-235959.999999.gz":  "0.log.20270101-000000.000000",
		"0.log.99991231-235959.999999":     "0.log.20260131-120000.000000",
		"0.log.20269999-999999":            "0.log.20260131-120000.000000",
		"0.log.20260131-130000.000000.tmp": "0.log.20260131-120000.000000",
	} {
		if got := Next("0.log", []string{"0.log.20250101-000000", newest, "0.log"}, at); got != want {
			t.Errorf("behind %s: %s, want %s", newest, got, want)
		}
	}
}

// TestOnlyTheLogsOwnFileIsRenamed: not one that has taken its name, and not what a link leads to, be it in place of the
// log or of its directory.
func TestOnlyTheLogsOwnFileIsRenamed(t *testing.T) {
	top := t.TempDir()
	for name, change := range map[string]func(t *testing.T, dir string){
		"removed": func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "0.log")); err != nil {
				t.Fatal(err)
			}
		},
		"another file": func(t *testing.T, dir string) {
			if err := os.Rename(filepath.Join(dir, "0.log"), filepath.Join(dir, "kept")); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "0.log"), "another's")
		},
		"a link to the file itself": func(t *testing.T, dir string) {
			if err := errors.Join(os.Rename(filepath.Join(dir, "0.log"), filepath.Join(dir, "kept")),
				os.Symlink("kept", filepath.Join(dir, "0.log"))); err != nil {
				t.Fatal(err)
			}
		},
		"a directory of another": func(t *testing.T, dir string) {
			other := filepath.Join(top, "other")
			if err := errors.Join(os.Mkdir(other, 0o700), os.Rename(dir, dir+".kept"), os.Symlink(other, dir)); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(other, "0.log"), "another's")
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(top, strings.ReplaceAll(name, " ", "-"))
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "0.log")
			file := write(t, path, "own")
			change(t, dir)
			before := list(t, dir)
			if _, err := Rotate(path, file, time.Now()); !errors.Is(err, ErrMoved) {
				t.Errorf("rotated: %v", err)
			}
			if after := list(t, dir); !slices.Equal(before, after) {
				t.Errorf("there were %q, and are %q", before, after)
			}
		})
	}
	if got := read(t, filepath.Join(top, "other/0.log")); got != "another's" {
		t.Errorf("the other's log has %q", got)
	}
}

// TestALogThatCannotBeOpenedAnewKeepsItsName, and goes on in its file.
func TestALogThatCannotBeOpenedAnewKeepsItsName(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, strings.Repeat("n", 240)) // a part's name would be longer than one may be
	file := write(t, path, "before ")
	if _, err := Rotate(path, file, time.Now()); err == nil || errors.Is(err, ErrMoved) {
		t.Errorf("rotated: %v", err)
	}
	if _, err := file.WriteString("after"); err != nil {
		t.Fatal(err)
	}
	if got := read(t, path); got != "before after" || len(list(t, dir)) != 1 {
		t.Errorf("the log has %q, and there is %q", got, list(t, dir))
	}
}

// TestTheOldestPartsAreRemovedAndNothingElse: no file of another log, no directory, and not what a link leads to.
func TestTheOldestPartsAreRemovedAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	outside := filepath.Join(t.TempDir(), "outside")
	write(t, outside, "outside")
	for _, name := range []string{"0.log", "0.log.20260101-000000", "0.log.20260102-000000.gz", "0.log.20260103-000000.5",
		"0.log.20260104-000000", "0.log.1", "1.log.20260101-000000", "0.log.20260101-000001.tmp"} {
		write(t, filepath.Join(dir, name), "12345")
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "0.log.20250101-000000"), 0o700),
		os.Symlink(outside, filepath.Join(dir, "0.log.20250102-000000"))); err != nil {
		t.Fatal(err)
	}
	removed, err := Prune(path, 2)
	if err != nil || removed != 10 {
		t.Errorf("%d bytes removed, %v", removed, err)
	}
	want := []string{"0.log", "0.log.1", "0.log.20250101-000000", "0.log.20250102-000000", "0.log.20260101-000001.tmp",
		"0.log.20260103-000000.5", "0.log.20260104-000000", "1.log.20260101-000000"}
	if got := list(t, dir); !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
	if got := read(t, outside); got != "outside" {
		t.Errorf("outside has %q", got)
	}
}
