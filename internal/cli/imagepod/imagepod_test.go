package imagepod

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"berth/internal/manifest"
)

// made is the pod of a command line.
func made(t *testing.T, args ...string) (*manifest.Pod, error) {
	t.Helper()
	var o Options
	flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
	flags.SetInterspersed(false)
	o.Add(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	rest := flags.Args()
	documents, err := o.Documents("", rest[0], rest[1:], false)
	if err != nil {
		return nil, err
	}
	return documents.Pods()[0], nil
}

func TestFlagsBecomeFieldsOfAPod(t *testing.T) {
	t.Setenv("FROM_HERE", "a $(B)")
	dir := t.TempDir()
	pod, err := made(t, "-i", "-e", "A=1", "-e", "FROM_HERE", "-e", "NOT_SET_HERE", "-w", "/srv", "-u", "7:8",
		"-p", "8080:80", "-p", "[::1]:53:5353/udp", "-v", dir+":/host:ro", "-v", "data:/data", "-v", "/scratch",
		"-l", "app=web", "--memory", "512m", "--cpus", "1.5", "--read-only", "--entrypoint", "/bin/e",
		"quay.io/a/web_app:2", "-x", "$HOME")
	if err != nil {
		t.Fatal(err)
	}
	c := pod.Spec.Containers[0]
	if !strings.HasPrefix(pod.Name, "web-app-") || c.Name != "web-app" || c.Image != "quay.io/a/web_app:2" ||
		pod.Labels["app"] != "web" || pod.Owner.Kind != manifest.KindImage || pod.Owner.Name != pod.Name {
		t.Errorf("names: %s, %s, %s, %v", pod.Name, c.Name, c.Image, pod.Owner)
	}
	if len(c.Command) != 1 || c.Command[0] != "/bin/e" || len(c.Args) != 2 || c.Args[1] != "$$HOME" {
		t.Errorf("command %q, arguments %q", c.Command, c.Args)
	}
	if len(c.Env) != 2 || c.Env[1].Name != "FROM_HERE" || c.Env[1].Value != "a $$(B)" {
		t.Errorf("environment: %v", c.Env)
	}
	if !c.Stdin || !c.StdinOnce || c.TTY || c.WorkingDir != "/srv" || c.ImagePullPolicy != corev1.PullIfNotPresent {
		t.Errorf("container: %+v", c)
	}
	if s := c.SecurityContext; *s.RunAsUser != 7 || *s.RunAsGroup != 8 || !*s.ReadOnlyRootFilesystem ||
		s.Privileged != nil {
		t.Errorf("security: %+v", s)
	}
	if c.Ports[0].HostPort != 8080 || c.Ports[0].ContainerPort != 80 || c.Ports[1].HostIP != "::1" ||
		c.Ports[1].HostPort != 53 || c.Ports[1].ContainerPort != 5353 || c.Ports[1].Protocol != corev1.ProtocolUDP {
		t.Errorf("ports: %+v", c.Ports)
	}
	if v := pod.Spec.Volumes; v[0].HostPath.Path != dir || v[1].PersistentVolumeClaim.ClaimName != "data" ||
		v[2].EmptyDir == nil || !c.VolumeMounts[0].ReadOnly || c.VolumeMounts[1].ReadOnly {
		t.Errorf("volumes: %+v, %+v", v, c.VolumeMounts)
	}
	if limits := c.Resources.Limits; limits.Memory().Value() != 512<<20 || limits.Cpu().MilliValue() != 1500 {
		t.Errorf("limits: %v", limits)
	}
	if pod, err = made(t, "-u", "www-data", "--network", "host", "busybox"); err != nil || pod.User != "www-data" ||
		!pod.Spec.HostNetwork {
		t.Errorf("a user with a name on the host's network: %+v, %v", pod, err)
	}
}

func TestPathsOfVolumesMayBeRelative(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.Mkdir("www", 0o755); err != nil {
		t.Fatal(err)
	}
	pod, err := made(t, "-v", "./www:/www", "busybox")
	if err != nil || pod.Spec.Volumes[0].HostPath.Path != filepath.Join(dir, "www") {
		t.Errorf("%+v, %v", pod, err)
	}
}

func TestFlagsThatCannotBeMeantAreRefused(t *testing.T) {
	for says, args := range map[string][]string{
		`image "NO IMAGE"`:    {"NO IMAGE"},
		`--env "=x"`:          {"-e", "=x", "busybox"},
		`--workdir "srv"`:     {"-w", "srv", "busybox"},
		"has no user":         {"-u", ":7", "busybox"},
		"has to be a number":  {"-u", "www:www", "busybox"},
		"is no user's number": {"-u", "4294967295", "busybox"},
		"as in 8080:80":       {"-p", "80", "busybox"},
		`"0" is not a port`:   {"-p", "0:80", "busybox"},
		`"x" is not a port`:   {"-p", "80:x", "busybox"},
		"not an IP address":   {"-p", "host:80:80", "busybox"},
		"tcp, udp and sctp":   {"-p", "80:80/icmp", "busybox"},
		"is taken by":         {"-p", "80:80", "-p", "80:81", "busybox"},
		"SOURCE:TARGET[:ro]":  {"-v", "a:/b:ro:c", "busybox"},
		"none of ro and rw":   {"-v", "a:/b:Z", "busybox"},
		"not an absolute":     {"-v", "a:b", "busybox"},
		"name of a volume":    {"-v", "A_B:/b", "busybox"},
		"no such file":        {"-v", "/no/such/dir:/b", "busybox"},
		`--label "a b"`:       {"-l", "a b", "busybox"},
		"is no size":          {"--memory", "much", "busybox"},
		"less than 1 MiB":     {"--memory", "512", "busybox"},
		"no number of CPUs":   {"--cpus", "0", "busybox"},
		"only host":           {"--network", "none", "busybox"},
		"exclude each other":  {"--network", "host", "-p", "80:80", "busybox"},
		"always, missing":     {"--pull", "sometimes", "busybox"},
		"name a program":      {"--entrypoint", "", "busybox"},
		"is negative":         {"--stop-timeout", "-1", "busybox"},
	} {
		if _, err := made(t, args...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", args, err, says)
		}
	}
}
