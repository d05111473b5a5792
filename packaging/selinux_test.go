package packaging_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// smallPolicy is the least that secilc compiles; types are added to it.
const smallPolicy = `(handleunknown allow)
(mls true)
(class file (read))
(classorder (file))
(sid kernel)
(sidorder (kernel))
(sensitivity s0)
(sensitivityorder (s0))
(category c0)
(categoryorder (c0))
(sensitivitycategory s0 (c0))
(type kernel_t)
(role object_r)
(user system_u)
(userrole system_u object_r)
(userlevel system_u (s0))
(userrange system_u ((s0) (s0 (c0))))
(roletype object_r kernel_t)
(allow kernel_t self (file (read)))
(sidcontext kernel (system_u object_r kernel_t ((s0) (s0))))
`

// TestFileContexts: with the types of container-selinux, each path of Berth has the type that the last matching line
// gives it, as libselinux looks it up. A policy without these types takes the module, too, and gets nothing of it. Seen
// to fail without the block that makes the lines optional, and with the line of the layers taken out.
func TestFileContexts(t *testing.T) {
	if _, err := exec.LookPath("secilc"); err != nil {
		t.Skip(err)
	}
	var types strings.Builder
	for _, name := range []string{"runtime_exec_t", "var_run_t", "var_lib_t", "ro_file_t"} {
		fmt.Fprintf(&types, "(type container_%s)\n(roletype object_r container_%[1]s)\n", name)
	}
	compiled := func(types string) string {
		t.Helper()
		dir := t.TempDir()
		base := filepath.Join(dir, "base.cil")
		if err := os.WriteFile(base, []byte(smallPolicy+types), 0o600); err != nil {
			t.Fatal(err)
		}
		contexts := filepath.Join(dir, "file_contexts")
		output(t, "secilc", "-o", filepath.Join(dir, "policy"), "-f", contexts, base, "selinux/berth.cil")
		data, err := os.ReadFile(contexts)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if got := compiled(""); strings.TrimSpace(got) != "" {
		t.Errorf("a policy without the types of containers gets\n%s", got)
	}
	contexts := compiled(types.String())
	for path, want := range map[string]string{
		"/usr/bin/berthd": "container_runtime_exec_t", "/usr/local/bin/berth-keeper": "container_runtime_exec_t",
		"/usr/bin/berth-unpack": "container_runtime_exec_t", "/usr/bin/berth": "",
		"/run/berth": "container_var_run_t", "/var/run/berth/berth.sock": "container_var_run_t",
		"/var/lib/berth/pods": "container_var_lib_t", "/var/lib/berth-cli": "",
		"/var/lib/berth/images/layers/1/bin/sh": "container_ro_file_t", "/var/lib/berth/images": "container_var_lib_t",
	} {
		got := ""
		for line := range strings.Lines(contexts) {
			fields := strings.Fields(line)
			if regexp.MustCompile("^" + fields[0] + "$").MatchString(path) {
				got = strings.Split(fields[len(fields)-1], ":")[2]
			}
		}
		if got != want {
			t.Errorf("%s has the type %q, not %q", path, got, want)
		}
	}
}

// selinuxInARoot: the packages' scripts load the module where the node has SELinux and the tools of its policy, before
// they start anything, and take it out again.
func selinuxInARoot(s *system, paths map[string]string) {
	for _, name := range []string{"semodule", "load_policy", "restorecon", "selinuxenabled"} {
		path := "/usr/sbin/" + name
		s.write(path, "#!/bin/sh\n[ \"$*\" != -lfull ] || { echo '200 berth cil'; exit; }\n"+
			"echo \""+name+" $*\" >>/systemctl.log\n")
		if err := os.Chmod(s.at(path), 0o755); err != nil {
			s.t.Fatal(err)
		}
		defer os.Remove(s.at(path))
	}
	s.dpkg("-i", paths["1.0.0.deb"]) // without a configuration of SELinux
	s.asked()
	s.dpkg("--purge", "berth")
	s.asked()

	s.write("/etc/selinux/config", "SELINUX=enforcing\n")
	defer os.RemoveAll(s.at("/etc/selinux"))
	loads := []string{"semodule -n -X 200 -i /usr/share/selinux/packages/berth.cil", "selinuxenabled ", "load_policy ",
		"restorecon /usr/bin/berthd /usr/bin/berth-keeper /usr/bin/berth-unpack"}
	removes := []string{"semodule -n -X 200 -r berth", "selinuxenabled ", "load_policy "}
	s.dpkg("-i", paths["1.0.0.deb"])
	s.asked(loads...)
	s.booted(true)
	s.dpkg("-i", paths["1.1.0.deb"])
	// The postremove of the old version asks for the first reload.
	s.asked(slices.Concat([]string{"daemon-reload"}, loads, []string{"daemon-reload"}, upgrade)...)
	s.booted(false)
	s.dpkg("--remove", "berth")
	s.asked(removes...)
	s.dpkg("--purge", "berth")
	s.asked()

	if _, err := exec.LookPath("rpm"); err != nil {
		return
	}
	output(s.t, "rpm", "--root", s.root, "--nodeps", "--ignorearch", "-i", paths["1.0.0.rpm"])
	s.asked(loads...)
	output(s.t, "rpm", "--root", s.root, "--nodeps", "--ignorearch", "-U", paths["1.1.0.rpm"])
	s.asked(loads...)
	output(s.t, "rpm", "--root", s.root, "--nodeps", "-e", "berth")
	s.asked(removes...)

	// A policy that does not take the module keeps nobody from Berth.
	s.write("/usr/sbin/semodule", "#!/bin/sh\nexit 1\n")
	s.dpkg("-i", paths["1.0.0.deb"])
	s.asked()
	s.dpkg("--purge", "berth")
	s.asked()
}
