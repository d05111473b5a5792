package migrate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// hostsFiles are the hosts.toml files of a plan by the names of their directories.
func hostsFiles(p *Plan) map[string]string {
	out := map[string]string{}
	for _, f := range p.Files {
		if filepath.Base(f.Path) == "hosts.toml" {
			out[filepath.Base(filepath.Dir(f.Path))] = string(f.Data)
		}
	}
	return out
}

const oldRegistry = "[plugins.\"io.containerd.grpc.v1.cri\".registry"

// TestCredentialsReachARegistryOverPlainHTTP where containerd has some for it. Other hosts that containerd sends
// credentials to are printed, with those to which Berth sends a fixed header.
func TestCredentialsReachARegistryOverPlainHTTP(t *testing.T) {
	plan, _ := translated(t, map[string]string{"config.toml": "version = 2\n" +
		oldRegistry + ".mirrors.'known.test:5000']\nendpoint = [\"https://known.test:5000\", \"http://known.test:5000\"]\n" +
		oldRegistry + ".mirrors.'other.test']\nendpoint = [\"http://other.test\"]\n" +
		oldRegistry + ".mirrors.'docker.io']\nendpoint = [\"https://m.test\", \"https://own.test\"]\n" +
		oldRegistry + ".configs.'known.test:5000'.auth]\nusername = \"me\"\npassword = \"hidden\"\n" +
		oldRegistry + ".configs.'own.test'.auth]\nusername = \"me\"\npassword = \"hidden\"\n"})
	files := hostsFiles(plan)
	if got := strings.Count(files["known.test:5000"], "berth_credentials = 'plain'"); got != 2 {
		t.Errorf("the registry with credentials:\n%s", files["known.test:5000"])
	}
	for _, name := range []string{"other.test", "docker.io"} {
		if strings.Contains(files[name], "berth_credentials") {
			t.Errorf("%s:\n%s", name, files[name])
		}
	}
	certs := filepath.Join(plan.dir, "certs.d")
	if !noted(plan, certs, Left, "docker.io: https://m.test; other.test: http://other.test") {
		t.Errorf("the hosts without credentials are not printed: %v", plan.Notes)
	}
	if !noted(plan, "configs.'own.test'.auth", Left, "fixed header") {
		t.Errorf("the fixed header is not printed: %v", plan.Notes)
	}
	var logins string
	for _, f := range plan.Files {
		if f.Path == plan.credentialsFile() {
			logins = string(f.Data)
		}
	}
	for _, host := range []string{"known.test:5000", "own.test"} {
		if !strings.Contains(logins, host) {
			t.Errorf("the kubelet has no credentials for images of %s:\n%s", host, logins)
		}
	}
}

// TestHostsFilesThatStayAreLookedAt: Berth sends credentials to fewer hosts than containerd does with the same files.
func TestHostsFilesThatStayAreLookedAt(t *testing.T) {
	certs := t.TempDir()
	write(t, certs, map[string]string{
		"docker.io/hosts.toml": "[host.\"https://m.test\"]\n[host.\"https://said.test\"]\nberth_credentials = \"tls\"\n",
		"r.test/hosts.toml":    "server = \"http://r.test\"\n",
	})
	plan, _ := translated(t, map[string]string{"config.toml": "version = 2\n" + oldRegistry + "]\n" +
		"config_path = \"" + certs + "\"\n" + oldRegistry +
		".configs.'m.test'.auth]\nusername = \"me\"\npassword = \"hidden\"\n"})
	if !noted(plan, certs, Left, "docker.io: https://m.test; r.test: http://r.test") {
		t.Errorf("the hosts without credentials are not printed: %v", plan.Notes)
	}
	if !noted(plan, "configs.'m.test'.auth", Left, "a mirror of docker.io in "+certs) {
		t.Errorf("credentials for a mirror are not printed: %v", plan.Notes)
	}
	plan, _ = translated(t, map[string]string{"config.toml": "version = 2\n" + oldRegistry + "]\nconfig_path = \"" +
		t.TempDir() + "\"\n"})
	for _, n := range plan.Notes {
		if strings.Contains(n.Text, "berth_credentials") {
			t.Errorf("without a mirror: %v", n)
		}
	}
}

// TestCRIOsCredentialsStayInUse: its file is the node's, and hosts that CRI-O sends credentials to get them or are
// printed.
func TestCRIOsCredentialsStayInUse(t *testing.T) {
	old := crioLogins
	defer func() { crioLogins = old }()
	dir := t.TempDir()
	logins := filepath.Join(dir, "auth.json")
	crioLogins = []string{logins}
	registries := `
[[registry]]
location = "known.test"
insecure = true
[[registry]]
location = "other.test"
insecure = true
[[registry]]
prefix = "old.test"
location = "new.test"
[[registry]]
prefix = "docker.io"
location = "docker.io"
[[registry.mirror]]
location = "m.test/hub"
[[registry.mirror]]
location = "open.test"
`
	translate := func(key string) *Plan {
		write(t, dir, map[string]string{"containers/registries.conf": registries, "crio.conf": "[crio.image]\n" + key,
			"auth.json": `{"auths": {"https://known.test/v1/": {}, "m.test/hub": {}}, "credHelpers": {"new.test": "x"}}`})
		plan, err := FromCRIO(filepath.Join(dir, "crio.conf"), filepath.Join(dir, "containers"), filepath.Join(dir, "berth"))
		if err != nil {
			t.Fatal(err)
		}
		return plan
	}
	plan := translate("global_auth_file = \"" + logins + "\"\n")
	loaded, err := plan.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Image.Credentials != logins {
		t.Errorf("image.credentials is %q", loaded.Image.Credentials)
	}
	files := hostsFiles(plan)
	if got := strings.Count(files["known.test"], "berth_credentials = 'plain'"); got != 2 {
		t.Errorf("the registry with credentials:\n%s", files["known.test"])
	}
	for _, name := range []string{"other.test", "docker.io", "old.test"} {
		if strings.Contains(files[name], "berth_credentials") {
			t.Errorf("%s:\n%s", name, files[name])
		}
	}
	if certs := filepath.Join(dir, "berth/certs.d"); !noted(plan, certs, Left,
		"other.test: http://other.test, https://other.test") || noted(plan, certs, Left, "m.test") {
		t.Errorf("the hosts without credentials are not printed: %v", plan.Notes)
	}
	for key, host := range map[string]string{`registry "docker.io"`: "m.test", `registry "old.test"`: "new.test"} {
		if !noted(plan, key, Left, "credentials for "+host) {
			t.Errorf("%s: credentials for %s are not printed: %v", key, host, plan.Notes)
		}
	}
	if noted(plan, `registry "docker.io"`, Left, "open.test") {
		t.Errorf("a mirror without credentials is printed: %v", plan.Notes)
	}
	if plan := translate(""); !noted(plan, "global_auth_file, not given", Left, logins) {
		t.Errorf("the credentials that CRI-O finds by itself are not printed: %v", plan.Notes)
	}
	if err := os.Remove(logins); err != nil {
		t.Fatal(err)
	}
	plan, _ = translatedCRIO(t, "[crio.image]\nglobal_auth_file = \""+logins+"\"\n")
	if !noted(plan, "global_auth_file", Left, "no such file") {
		t.Errorf("a file that is not there is not printed: %v", plan.Notes)
	}
}
