package packaging_test

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"berth/internal/asroot"
	"berth/test/node"
)

// withC is a small program of Go with C.
const withC = `package main

// int three(void) { return 3; }
import "C"

func main() { println(C.three()) }
`

// staged is a small tree as make install fills it: its berthd is the smallest of Berth's programs.
func staged(t *testing.T) string {
	t.Helper()
	dir, err := node.Binaries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for path, mode := range map[string]os.FileMode{
		"usr/bin/berthd": 0o755, "usr/lib/systemd/system/berthd.service": 0o644, "etc/berth/config.toml": 0o644,
		"usr/share/man/man8/berthd.8.gz": 0o644, "usr/share/doc/berth/LICENSE": 0o644,
		"usr/share/doc/berth/config.toml":      0o644,
		"usr/share/selinux/packages/berth.cil": 0o644,
	} {
		at := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(path), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "etc/berth/manifests"), 0o700); err != nil { // empty
		t.Fatal(err)
	}
	output(t, "cp", filepath.Join(dir, "berth-unpack"), filepath.Join(root, "usr/bin/berthd"))
	source := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(source, []byte(withC), 0o600); err != nil {
		t.Fatal(err)
	}
	output(t, "go", "build", "-trimpath", "-o", filepath.Join(root, "usr/bin/with-c"), source)
	return root
}

// packages makes packages of a tree, with the program that make packages runs.
func packages(t *testing.T, program, root string) map[string][]byte {
	t.Helper()
	out := t.TempDir()
	cmd := exec.Command(program, "-root", root, "-out", out, "-scripts", "scripts", "-version", "1.2.3-rc.1+4.gabc",
		"-arch", "amd64", "-time", "1700000000", "-c-libraries", "musl-dev=1.2.3-1+deb libc6-dev=2.36-9")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	made := map[string][]byte{}
	entries, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if made[e.Name()], err = os.ReadFile(filepath.Join(out, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return made
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestBillOfMaterials: it has each program with its checksum, each module that the linker has recorded in it, and the
// libraries of C of those that have C, and is the same inside of the packages and beside them. Seen to fail without the
// modules, and with the libraries in all programs.
func TestBillOfMaterials(t *testing.T) {
	root := staged(t)
	made := packages(t, packer(t), root)
	text := made["berth-1.2.3-rc.1+4.gabc-linux-amd64.cdx.json"]
	inside, err := os.ReadFile(filepath.Join(root, "usr/share/doc/berth/berth.cdx.json"))
	if err != nil || !bytes.Equal(inside, text) {
		t.Errorf("the bill in the tree is another one: %v", err)
	}
	var bill struct {
		BOMFormat  string
		Components []struct {
			Ref    string `json:"bom-ref"`
			PURL   string
			Hashes []struct{ Alg, Content string }
		}
		Dependencies []struct {
			Ref       string
			DependsOn []string
		}
	}
	if err := json.Unmarshal(text, &bill); err != nil || bill.BOMFormat != "CycloneDX" {
		t.Fatalf("format %q, %v", bill.BOMFormat, err)
	}
	listed := map[string]string{}
	for _, c := range bill.Components {
		listed[c.Ref] = ""
		for _, h := range c.Hashes {
			listed[c.Ref] = h.Alg + " " + h.Content
		}
	}
	uses := map[string][]string{}
	for _, d := range bill.Dependencies {
		uses[d.Ref] = d.DependsOn
		for _, ref := range append(d.DependsOn, d.Ref) {
			if _, ok := listed[ref]; !ok && ref != "berth" {
				t.Errorf("%s is used and not listed", ref)
			}
		}
	}
	libraries := []string{"pkg:deb/debian/libc6-dev@2.36-9", "pkg:deb/debian/musl-dev@1.2.3-1%2Bdeb"}
	for name, want := range map[string][]string{"berthd": nil, "with-c": libraries} {
		path := filepath.Join(root, "usr/bin", name)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := listed["program:"+name], fmt.Sprintf("SHA-256 %x", sha256.Sum256(data)); got != want {
			t.Errorf("%s has the checksum %q, not %q", name, got, want)
		}
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, "pkg:golang/std@"+strings.TrimPrefix(info.GoVersion, "go"))
		for _, module := range info.Deps {
			want = append(want, "pkg:golang/"+module.Path+"@"+strings.ReplaceAll(module.Version, "+", "%2B"))
		}
		slices.Sort(want)
		if got := uses["program:"+name]; !slices.Equal(got, want) {
			t.Errorf("%s is made of %q, not of %q", name, got, want)
		}
	}
	if got := uses["berth"]; !slices.Equal(got, []string{"program:berthd", "program:with-c"}) {
		t.Errorf("berth is made of %q", got)
	}
}

// TestLicenses: the packages pass on the license of each module and library that the programs have inside, and the bill
// of materials names those of modules. Seen to fail without the texts of modules.
func TestLicenses(t *testing.T) {
	root := staged(t)
	made := packages(t, packer(t), root)
	data, err := os.ReadFile(filepath.Join(root, "usr/share/doc/berth/copyright"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(filepath.Join(root, "usr/bin/berthd"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"usr/share/doc/berth/LICENSE", "  libc6-dev 2.36-9\n", "GNU Lesser", "  musl-dev 1.2.3-1+deb\n",
		"  Go " + strings.TrimPrefix(info.GoVersion, "go") + "\n", "Redistributions in binary form", "Apache License"}
	for _, module := range info.Deps {
		want = append(want, "  "+module.Path+" "+module.Version+"\n")
	}
	for _, part := range want {
		if !strings.Contains(string(data), part) {
			t.Errorf("the licenses lack %q", part)
		}
	}
	var bill struct {
		Components []struct {
			PURL     string
			Licenses []struct{ License struct{ ID string } }
		}
	}
	if err := json.Unmarshal(made["berth-1.2.3-rc.1+4.gabc-linux-amd64.cdx.json"], &bill); err != nil {
		t.Fatal(err)
	}
	for _, c := range bill.Components {
		if strings.HasPrefix(c.PURL, "pkg:golang/") && (len(c.Licenses) == 0 || c.Licenses[0].License.ID == "") {
			t.Errorf("%s has no license", c.PURL)
		}
	}
}

// packer is the program that make packages runs.
func packer(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "packages")
	output(t, "go", "-C", "../tools/packages", "build", "-o", program, ".")
	return program
}

// TestTheTarballIsASystemExtension: systemd-sysext puts it over a /usr that has other files and stays as it is. Seen to
// fail without the file for systemd-sysext.
func TestTheTarballIsASystemExtension(t *testing.T) {
	asroot.Need(t, "mounts")
	if _, err := exec.LookPath("systemd-sysext"); err != nil {
		t.Skip(err)
	}
	if runtime.GOARCH != "amd64" {
		t.Skipf("the package of the test is for amd64, and this machine is %s", runtime.GOARCH)
	}
	made := packages(t, packer(t), staged(t))
	tarball := filepath.Join(t.TempDir(), "berth.tar.gz")
	if err := os.WriteFile(tarball, made["berth-1.2.3-rc.1+4.gabc-linux-amd64.tar.gz"], 0o600); err != nil {
		t.Fatal(err)
	}
	system := t.TempDir()
	extension := filepath.Join(system, "var/lib/extensions/berth")
	for _, dir := range []string{extension, filepath.Join(system, "usr/bin"), filepath.Join(system, "usr/lib")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{"usr/bin/other": "of the system", "usr/lib/os-release": "ID=flatcar\n"} {
		if err := os.WriteFile(filepath.Join(system, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	output(t, "tar", "-C", extension, "-xf", tarball)
	// systemd-sysext mounts in a namespace of its own, from which shared mounts come back.
	got := output(t, "unshare", "--mount", "sh", "-ec", `
		mount --make-rshared /
		mount -t tmpfs none /run
		systemd-sysext --root="$0" merge >&2
		cat "$0/usr/bin/other"; cmp "$0/usr/bin/berthd" "$0/var/lib/extensions/berth/usr/bin/berthd"
		cat "$0/usr/lib/systemd/system/berthd.service"; ! touch "$0/usr/bin/new" 2>/dev/null`, system)
	for _, want := range []string{"of the system", "usr/lib/systemd/system/berthd.service"} {
		if !strings.Contains(got, want) {
			t.Errorf("the system has no %q: %s", want, got)
		}
	}
	if _, err := os.Stat(filepath.Join(system, "usr/bin/berthd")); err == nil {
		t.Error("the system's own /usr has changed")
	}
}

// upgradeByTar unpacks a tarball where Berth is installed, as docs/operations.md has it. The administrator's
// configuration stays.
func upgradeByTar(t *testing.T, archive string) {
	t.Helper()
	root := t.TempDir()
	for path, text := range map[string]string{config: "# mine\n", unit: "old"} {
		at := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	output(t, "tar", "-C", root, "-xf", archive)
	for path, want := range map[string]string{config: "# mine\n", unit: strings.TrimPrefix(unit, "/")} {
		if got, err := os.ReadFile(filepath.Join(root, path)); err != nil || string(got) != want {
			t.Errorf("after the tarball was unpacked, %s is %q, %v; want %q", path, got, err, want)
		}
	}
}

// TestPackages: the same tree makes the same bytes, files of /etc are the administrator's, and each format has all
// files and the maintainer scripts. The tarball has no files of /etc, since tar writes over what is there. Seen to fail
// where it had the configuration.
func TestPackages(t *testing.T) {
	program := packer(t)
	first, second := packages(t, program, staged(t)), packages(t, program, staged(t))
	dir := t.TempDir()
	var deb, rpm, archive string
	for name, data := range first {
		if !bytes.Equal(data, second[name]) {
			t.Errorf("%s has other bytes the second time", name)
		}
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, data, 0o600); err != nil {
			t.Fatal(err)
		}
		switch filepath.Ext(name) {
		case ".deb":
			deb = at
		case ".rpm":
			rpm = at
		case ".gz":
			archive = at
		}
	}
	if len(first) != 5 {
		t.Fatalf("made: %v", first)
	}
	check := exec.Command("sha256sum", "-c", "SHA256SUMS")
	check.Dir = dir
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("SHA256SUMS: %v\n%s", err, out)
	}
	files := []string{"/etc/berth/config.toml", "/etc/berth/manifests", "/usr/bin/berthd",
		"/usr/lib/systemd/system/berthd.service", "/usr/share/doc/berth/config.toml",
		"/usr/share/doc/berth/berth.cdx.json", "/usr/share/doc/berth/copyright", "/usr/share/man/man8/berthd.8.gz",
		"/usr/share/selinux/packages/berth.cil"}
	listed := map[string]string{
		"deb": output(t, "dpkg-deb", "-c", deb), "tar": output(t, "tar", "-tf", archive),
		"rpm": output(t, "rpm", "-qpl", rpm),
	}
	for format, text := range listed {
		for _, file := range files {
			want := format != "tar" || file != config
			if strings.Contains(text, strings.TrimPrefix(file, "/")) != want {
				t.Errorf("%s has %s: %v, want %v:\n%s", format, file, !want, want, text)
			}
		}
	}
	upgradeByTar(t, archive)
	control := filepath.Join(dir, "control")
	output(t, "dpkg-deb", "-e", deb, control)
	conffiles, err := os.ReadFile(filepath.Join(control, "conffiles"))
	if err != nil || strings.TrimSpace(string(conffiles)) != "/etc/berth/config.toml" {
		t.Errorf("conffiles %q, %v", conffiles, err)
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		if info, err := os.Stat(filepath.Join(control, script)); err != nil || info.Mode().Perm()&0o111 == 0 {
			t.Errorf("%s: %v, %v", script, info, err)
		}
	}
	if got := strings.TrimSpace(output(t, "dpkg-deb", "-f", deb, "Recommends")); got != "criu, apparmor" {
		t.Errorf("the deb recommends %q", got)
	}
	// A pre-release comes before its release.
	version := strings.TrimSpace(output(t, "dpkg-deb", "-f", deb, "Version"))
	if err := exec.Command("dpkg", "--compare-versions", version, "lt", "1.2.3").Run(); err != nil {
		t.Errorf("version %s is not before 1.2.3: %v", version, err)
	}
	if got := strings.Fields(output(t, "rpm", "-qpc", rpm)); !slices.Equal(got, []string{"/etc/berth/config.toml"}) {
		t.Errorf("the rpm's configuration files are %v", got)
	}
	if text := output(t, "rpm", "-qp", "--scripts", rpm); !strings.Contains(text, "systemctl reload berth-keeper") {
		t.Errorf("the rpm's scripts:\n%s", text)
	}
}
