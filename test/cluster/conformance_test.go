package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"berth/test/cluster/host"
	"berth/test/conformance/ginkgo"
	"berth/test/conformance/images"
	"berth/test/kubernetes"
)

var (
	conformance = flag.Bool("conformance", false, "run no test of this suite, but the specs of Kubernetes' own")
	specs       = flag.String("label-filter", "Conformance", "with -conformance: Ginkgo's filter of specs by their labels")
	focus       = flag.String("focus", "", "with -conformance: only specs whose text matches this regular expression")
	skip        = flag.String("skip", "", "with -conformance: leave out specs whose text matches this regular expression")
	procs       = flag.Int("procs", 6, "with -conformance: specs at a time; serial ones run alone, after the others")
	limit       = flag.Duration("limit", 3*time.Hour, "with -conformance: longest time of the suite")
	verbose     = flag.Bool("verbose", false, "with -conformance: show what the suite prints")
)

const reportFile = "report.json"

// prepareConformance builds what the specs need, before there is a cluster: the images that they name.
func prepareConformance(ctx context.Context, cache string) (images.Images, error) {
	programs := map[string]string{}
	for _, p := range []kubernetes.Program{kubernetes.Tests, kubernetes.Ginkgo, kubernetes.Agnhost,
		kubernetes.SampleDevicePlugin, kubernetes.SampleAPIServer, kubernetes.EtcdImage} {
		path, err := p.Build(ctx)
		if err != nil {
			return nil, err
		}
		programs[p.Name()] = path
	}
	source, err := kubernetes.Directory(ctx)
	if err != nil {
		return nil, err
	}
	return images.Cached(ctx, filepath.Join(cache, "cluster-images"), filepath.Join(cache, "packages"),
		func(ctx context.Context, packages string) (images.Images, error) {
			return images.ForCluster(ctx, packages, images.Sources{
				Agnhost:            programs[kubernetes.Agnhost.Name()],
				SampleDevicePlugin: programs[kubernetes.SampleDevicePlugin.Name()],
				Directory:          filepath.Join(source, "test", "images"),
			}, images.Servers{
				APIServer: programs[kubernetes.SampleAPIServer.Name()], Etcd: programs[kubernetes.EtcdImage.Name()],
			})
		})
}

// conform runs the specs against the cluster. What it keeps is in a directory of the user's cache: the report, what the
// suite printed, and the logs of the nodes.
func (c *cluster) conform(ctx context.Context, built images.Images, cache string) error {
	if err := built.Push(c.registry); err != nil {
		return err
	}
	results := filepath.Join(cache, "results", "cluster")
	if err := os.RemoveAll(results); err != nil {
		return err
	}
	if err := os.MkdirAll(results, 0o755); err != nil {
		return err
	}
	runErr := errors.Join(c.runSpecs(ctx, results), c.keepLogs(results))
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), runErr)
	}
	data, err := os.ReadFile(filepath.Join(results, reportFile))
	if err != nil {
		return errors.Join(err, runErr)
	}
	summary, err := ginkgo.Summarize(data, expectedFailures)
	if err != nil {
		return errors.Join(err, runErr)
	}
	summary.Print(os.Stdout, "a cluster on berth")
	fmt.Printf("report and logs: %s\n", results)
	return errors.Join(runErr, summary.Verdict())
}

// runSpecs runs the suite. That specs fail is no error: the report says so.
func (c *cluster) runSpecs(ctx context.Context, results string) error {
	tests, err := kubernetes.Tests.Build(ctx)
	if err != nil {
		return err
	}
	runner, err := kubernetes.Ginkgo.Build(ctx)
	if err != nil {
		return err
	}
	args := []string{
		"--procs", strconv.Itoa(*procs), "--no-color", "-v", "--timeout", limit.String(),
		"--json-report", reportFile, "--output-dir", results,
	}
	for flag, value := range map[string]string{"--focus": *focus, "--skip": *skip, "--label-filter": *specs} {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	args = append(args, tests, "--",
		"--provider=skeleton", "--kubeconfig="+c.admin, "--kubectl-path="+c.kubectlBinary, "--dns-domain="+domain,
		"--num-nodes="+strconv.Itoa(nodeCount), "--report-dir="+results, "--e2e-output-dir="+results, "--disable-log-dump")
	log, err := os.Create(filepath.Join(results, "suite.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	work := filepath.Join(c.dir, "suite") // where specs leave files
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, runner, args...)
	cmd.Dir = work
	cmd.Env = append(os.Environ(), "HOME="+work, "TMPDIR="+work)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	cmd.Stdout = log
	if *verbose {
		cmd.Stdout = io.MultiWriter(log, os.Stdout)
	}
	cmd.Stderr = cmd.Stdout
	err = cmd.Run()
	var failed *exec.ExitError
	if errors.As(err, &failed) && ctx.Err() == nil {
		if _, statErr := os.Stat(filepath.Join(results, reportFile)); statErr == nil {
			return nil
		}
	}
	return err
}

// keepLogs keeps what the programs of the nodes and of the control plane have said.
func (c *cluster) keepLogs(results string) error {
	var errs []error
	for _, m := range c.nodes {
		for _, s := range []*host.Service{m.berthd, m.kubelet, m.proxy} {
			errs = append(errs, copyLog(s, filepath.Join(results, m.name+"-"+s.Name+".log")))
		}
	}
	for _, s := range c.controlServices {
		errs = append(errs, copyLog(s, filepath.Join(results, s.Name+".log")))
	}
	return errors.Join(errs...)
}

func copyLog(s *host.Service, to string) error {
	data, err := os.ReadFile(s.Log)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

// expectedFailures are specs that cannot pass here.
var expectedFailures = []ginkgo.Expectation{
	{Spec: "Kubelet when scheduling a read only busybox container should not write to root filesystem",
		Why: "expects the words of busybox's shell; the image has bash, as Debian's busybox drops variables of other specs"},
}
