// Package packaging_test looks at the programs as they are installed.
package packaging_test

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/test/node"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := node.Cleanup(); err != nil {
		println(err.Error())
		code = 1
	}
	os.Exit(code)
}

// hardening is what all C is compiled with, but for macros, which compilers do not record: link_pie.go does not compile
// without _FORTIFY_SOURCE, nor main.c without what stands for it. Seen to fail without each of these in build.sh.
func hardening(arch string) []string {
	return []string{"-O2", "-fPIE", "-fstack-protector-strong", "-fstack-clash-protection", map[string]string{
		"amd64": "-fcf-protection", "arm64": "-mbranch-protection=standard",
	}[arch]}
}

// TestProgramsAreHardened reads the programs as checksec does. berthd, berth-unpack and berth have no C:
// they are static programs of Go. The keeper, and the small program inside it that stages and inits of pods are,
// have C: that is compiled with what protects it, and both run at addresses that are others for each process,
// with nothing that can be written and executed, and nothing left to be relocated.
func TestProgramsAreHardened(t *testing.T) {
	dir, err := node.Binaries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hardened(t, dir, runtime.GOARCH)
	compiled(t, recorded(t, runtime.GOARCH), runtime.GOARCH)
}

// hardened looks at the programs of a directory, which are for an architecture.
func hardened(t *testing.T, dir, arch string) {
	t.Helper()
	for _, name := range []string{"berthd", "berth", "berth-unpack", "berth-keeper"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, name)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			f := check(t, data)
			if want := machines[arch]; f.Machine != want {
				t.Errorf("it is for %s, not for %s", f.Machine, want)
			}
			info, err := buildinfo.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			settings := map[string]string{}
			for _, s := range info.Settings {
				settings[s.Key] = s.Value
			}
			if name != "berth-keeper" {
				if settings["CGO_ENABLED"] != "0" {
					t.Errorf("CGO_ENABLED is %q: it may have C", settings["CGO_ENABLED"])
				}
				return
			}
			independent(t, f)
			small := check(t, inside(t, data, arch))
			independent(t, small)
			calls(t, small, hardening(arch), 0)
		})
	}
}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// recorded builds the programs once more, with a keeper in which the compiler records how it was called. That of users
// has no such records: Go calls the compiler with numbers that are others for each build.
func recorded(t *testing.T, arch string) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("./build.sh", dir, "1.2.3")
	build.Env = append(os.Environ(), "GOARCH="+arch, "MORE_CFLAGS=-frecord-gcc-switches")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// compiled looks at how the C of such a keeper was compiled.
func compiled(t *testing.T, dir, arch string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "berth-keeper"))
	if err != nil {
		t.Fatal(err)
	}
	calls(t, check(t, data), hardening(arch), unprotected(t, arch))
}

// calls looks for flags of the compiler, which it has recorded for each file of C. As many files as are given may turn
// the stack's protection off.
func calls(t *testing.T, f *elf.File, flags []string, unprotected int) {
	t.Helper()
	section := f.Section(".GCC.command.line")
	if section == nil {
		t.Fatal("the program does not tell how it was compiled")
	}
	data, err := section.Data()
	if err != nil {
		t.Fatal(err)
	}
	for call := range strings.SplitSeq(strings.Trim(string(data), "\x00"), "\x00") {
		for _, flag := range flags {
			if !strings.Contains(call, " "+flag) {
				t.Errorf("a file was compiled without %s: %s", flag, call)
			}
		}
		if strings.Contains(call, " -fno-stack-protector") {
			unprotected--
		}
		for _, flag := range []string{"-fno-stack-clash-protection", "-fno-pie", "-fcf-protection=none"} {
			if strings.Contains(call, " "+flag) {
				t.Errorf("a file was compiled with %s: %s", flag, call)
			}
		}
	}
	if unprotected < 0 {
		t.Errorf("%d files too many were compiled with -fno-stack-protector", -unprotected)
	}
}

// unprotected is the number of C files of Go's runtime/cgo, which has no stack protection: it starts threads. cgo makes
// two more of each file of Go.
func unprotected(t *testing.T, arch string) int {
	t.Helper()
	list := exec.Command("go", "list", "-f", "{{len .CFiles}} {{len .CgoFiles}}", "runtime/cgo")
	list.Env = append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=1")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	var c, cgo int
	if _, err := fmt.Sscan(string(out), &c, &cgo); err != nil {
		t.Fatal(err)
	}
	return c + 2*cgo
}

// TestTheSmallProgramSealsItself runs it as the init of a pod: the library that it is linked with leaves what has been
// relocated as it is. Seen to fail without the call in main.c.
func TestTheSmallProgramSealsItself(t *testing.T) {
	dir, err := node.Binaries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	keeper, err := os.ReadFile(filepath.Join(dir, "berth-keeper"))
	if err != nil {
		t.Fatal(err)
	}
	data := inside(t, keeper, runtime.GOARCH)
	f := check(t, data)
	path := filepath.Join(t.TempDir(), "small")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	cmd.Args = []string{"/berth-init"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	waiting := func() bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		return err == nil && string(name) == "berth-init\n"
	}
	for deadline := time.Now().Add(time.Minute); !waiting(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not run")
		}
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_GNU_RELRO })
	if i < 0 {
		t.Fatal("nothing of it is to be sealed")
	}
	var base, at uint64
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		var rights string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &rights); err != nil {
			t.Fatal(line, err)
		}
		if base == 0 && strings.HasSuffix(line, path+"\n") {
			base, at = from, from+f.Progs[i].Vaddr
		}
		if base != 0 && from <= at && at < to {
			if rights != "r--p" {
				t.Errorf("what has been relocated is %s", rights)
			}
			return
		}
	}
	t.Errorf("nothing is at %#x:\n%s", at, maps)
}

// inside is the small program that the keeper has inside.
func inside(t *testing.T, keeper []byte, arch string) []byte {
	t.Helper()
	root, err := node.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	// build.sh leaves what it has put into the keeper.
	small, err := os.ReadFile(filepath.Join(root, "internal/keeper/program/program_"+arch+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(keeper, small) {
		t.Fatal("the keeper has another small program inside, or none: build it anew")
	}
	return small
}

// check looks at what holds for all programs.
func check(t *testing.T, data []byte) *elf.File {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	stack := false
	for _, p := range f.Progs {
		switch {
		case p.Type == elf.PT_INTERP:
			t.Error("it needs a dynamic loader")
		case p.Type == elf.PT_GNU_STACK:
			stack = true
			if p.Flags&elf.PF_X != 0 {
				t.Error("its stack can be executed")
			}
		case p.Type == elf.PT_LOAD && p.Flags&elf.PF_W != 0 && p.Flags&elf.PF_X != 0:
			t.Errorf("its memory at %#x can be written and executed", p.Vaddr)
		}
	}
	if !stack {
		t.Error("it does not say that its stack is not to be executed")
	}
	for _, tag := range []elf.DynTag{elf.DT_NEEDED, elf.DT_RPATH, elf.DT_RUNPATH} {
		if list, err := f.DynString(tag); err == nil && len(list) > 0 {
			t.Errorf("%s: %q", tag, list)
		}
	}
	if list, err := f.DynValue(elf.DT_TEXTREL); err == nil && len(list) > 0 {
		t.Error("its code is relocated")
	}
	return f
}

// independent looks for what a position-independent program with full RELRO has.
func independent(t *testing.T, f *elf.File) {
	t.Helper()
	if f.Type != elf.ET_DYN {
		t.Errorf("it is of type %s, for fixed addresses", f.Type)
	}
	flag := func(tag elf.DynTag) (all uint64) {
		values, _ := f.DynValue(tag)
		for _, v := range values {
			all |= v
		}
		return all
	}
	if elf.DynFlag1(flag(elf.DT_FLAGS_1))&elf.DF_1_PIE == 0 {
		t.Error("it is no position-independent executable")
	}
	if elf.DynFlag(flag(elf.DT_FLAGS))&elf.DF_BIND_NOW == 0 {
		t.Error("its symbols are bound when they are used")
	}
	relro := false
	for _, p := range f.Progs {
		if p.Type != elf.PT_GNU_RELRO {
			continue
		}
		relro = true
		for _, name := range []string{".got", ".init_array", ".data.rel.ro", ".dynamic"} {
			if s := f.Section(name); s != nil && (s.Addr < p.Vaddr || s.Addr+s.Size > (p.Vaddr+p.Memsz+4095)&^4095) {
				t.Errorf("%s can be written after it has been relocated", name)
			}
		}
	}
	if !relro {
		t.Error("what is relocated can be written after that")
	}
}
