package imagepod

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
)

// Options are the flags that say what the container of an image is like.
type Options struct {
	Stdin, TTY  bool
	env         []string
	workdir     string
	user        string
	entrypoint  string
	ports       []string
	volumes     []string
	labels      []string
	network     string
	readOnly    bool
	privileged  bool
	memory      string
	cpus        string
	pull        string
	stopTimeout int64
	Remove      bool // when the container has ended

	flags *pflag.FlagSet
}

// pullPolicies are the policies of a manifest, by the word of --pull.
var pullPolicies = map[string]corev1.PullPolicy{
	"always": corev1.PullAlways, "missing": corev1.PullIfNotPresent, "never": corev1.PullNever,
}

// PullWords are the values of --pull.
var PullWords = []string{"always", "missing", "never"}

// Add gives the flags to a command.
func (o *Options) Add(flags *pflag.FlagSet) {
	o.flags = pflag.NewFlagSet("image", pflag.ContinueOnError)
	own := o.flags
	own.BoolVarP(&o.Stdin, "interactive", "i", false, "pass standard input to the container")
	own.BoolVarP(&o.TTY, "tty", "t", false, "give the container a terminal")
	own.BoolVar(&o.Remove, "rm", true, "remove the pod once the container has ended; --rm=false keeps it, stopped")
	own.StringArrayVarP(&o.env, "env", "e", nil, "variable `NAME=value`, or NAME with the value that it has here")
	own.StringVarP(&o.workdir, "workdir", "w", "", "working directory, an absolute path in the container")
	own.StringVarP(&o.user, "user", "u", "", "user to run as: name or number[:group], the group as a number")
	own.StringVar(&o.entrypoint, "entrypoint", "", "program to run in place of the image's entrypoint")
	own.StringArrayVarP(&o.ports, "publish", "p", nil, "publish a port of the container: `[IP:]HOST:CONTAINER[/udp]`")
	own.StringArrayVarP(&o.volumes, "volume", "v", nil,
		"mount a directory or file of the host, or a named volume: `SOURCE:TARGET[:ro]`")
	own.StringArrayVarP(&o.labels, "label", "l", nil, "label of the pod, `NAME=value`")
	own.StringVar(&o.network, "network", "", "host: use the network of the host")
	own.BoolVar(&o.readOnly, "read-only", false, "make the root file system read-only")
	own.BoolVar(&o.privileged, "privileged", false, "all capabilities and devices, without seccomp and AppArmor")
	own.StringVar(&o.memory, "memory", "", "limit of memory, such as 512m")
	own.StringVar(&o.cpus, "cpus", "", "limit of CPUs, such as 1.5")
	own.StringVar(&o.pull, "pull", "missing", "when to pull the image: always, missing or never")
	own.Int64Var(&o.stopTimeout, "stop-timeout", 10, "seconds that the container has to end when it is stopped")
	flags.AddFlagSet(own)
}

// Given are the names of those flags that a command line has given, as people write them.
func (o *Options) Given() []string {
	var names []string
	o.flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			names = append(names, "--"+f.Name)
		}
	})
	slices.Sort(names)
	return names
}

// flagError is a value that a flag cannot have.
func flagError(flag, value, format string, args ...any) error {
	return fmt.Errorf("--%s %q: %s", flag, value, fmt.Sprintf(format, args...))
}
