package life

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	early "berth/api/runtime/v1alpha1"
	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// verifying starts a node with one image verifier, a script of sh, and returns its path.
func verifying(t *testing.T, script string) (n *node.Node, verifier string) {
	t.Helper()
	nodetest.BerthOnly(t, "its configuration is its own")
	verifier = filepath.Join(t.TempDir(), "signed")
	writeVerifier(t, verifier, script)
	return nodetest.Start(t, node.Options{
		Tables: fmt.Sprintf("[image_verifier]\nbin_dir = %q\n", filepath.Dir(verifier)),
	}), verifier
}

func writeVerifier(t *testing.T, path, script string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestAnImageThatIsNotVerifiedIsPulledOverNoAPI, and the error is what a kubelet shows as the reason of the pod. An
// image that is on the node is not asked about again. Seen to fail without the verifiers, and with the code
// FailedPrecondition.
func TestAnImageThatIsNotVerifiedIsPulledOverNoAPI(t *testing.T) {
	n, verifier := verifying(t, `case $2 in *busybox*) exit 0;; esac; echo nobody has signed "$4"; exit 1`)
	img, err := registrytest.Image(registrytest.WithFiles(map[string]string{"a": "b"}))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Registry.Push("unsigned:1", img); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	ref := node.RegistryHost + "/unsigned:1"
	refused := func(api string, err error) {
		t.Helper()
		text := status.Convert(err).Message()
		nodetest.WantCode(t, err, codes.Unknown)
		for _, word := range []string{ref, `"signed"`, "nobody has signed " + digest.String(), "exit code 1"} {
			if !strings.Contains(text, word) {
				t.Errorf("%s: no %s in: %s", api, word, text)
			}
		}
		if !strings.HasPrefix(text, crierrors.ErrSignatureValidationFailed.Error()+": ") {
			t.Errorf("%s: %s", api, text)
		}
	}
	request := &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}}
	_, err = n.Images.PullImage(nodetest.Context(t), request)
	refused("v1", err)
	_, err = nodetest.DialV1alpha2(n).PullImage(nodetest.Context(t), request)
	refused("v1alpha2", err)
	_, err = open2016(t, n).PullImage(nodetest.Context(t), &early.PullImageRequest{
		Image: &early.ImageSpec{Image: proto.String(ref)},
	})
	refused("v1alpha1", err)
	if code, _, complaints := typed(t, n, "pull", ref); code != 1 ||
		!strings.Contains(complaints, "nobody has signed") {
		t.Errorf("berth pull: %d, %s", code, complaints)
	}
	images, err := n.Images.ListImages(nodetest.Context(t), &cri.ListImagesRequest{})
	if err != nil || len(images.Images) != 0 {
		t.Errorf("images %v, %v", images, err)
	}
	p := nodetest.RunPod(t, n)
	p.Run()
	// What is here is not asked about again: a kubelet does not pull it, and containers of it start.
	writeVerifier(t, verifier, "exit 1")
	p.Run()
	if f := examine(t, n)["image verifiers"]; f.Level != "good" || !strings.HasSuffix(f.Detail, ": signed") {
		t.Errorf("berth doctor: %+v", f)
	}
	if err := os.Chmod(verifier, 0o757); err != nil {
		t.Fatal(err)
	}
	if f := examine(t, n)["image verifiers"]; f.Level != "poor" ||
		!strings.Contains(f.Detail, verifier+" has the mode 0757") {
		t.Errorf("berth doctor: %+v", f)
	}
	_, err = n.Images.PullImage(nodetest.Context(t), request)
	if text := status.Convert(err).Message(); !strings.Contains(text, "mode 0757") {
		t.Errorf("a program that others may write to: %v", err)
	}
	configure(t, n, "[image_verifier]\nbin_dir = \"\"\n")
	signalled(t, n, syscall.SIGHUP, reloaded)
	nodetest.Pull(t, n, ref)
	if f := examine(t, n)["image verifiers"]; f.Level != "good" || !strings.HasPrefix(f.Detail, "none") {
		t.Errorf("berth doctor: %+v", f)
	}
}

// TestNothingOfAVerifierOutlivesTheDaemon, also of what it has started and what has left its session. Seen to fail
// without the PID namespace: the second process lived on.
func TestNothingOfAVerifierOutlivesTheDaemon(t *testing.T) {
	long := fmt.Sprint(600_000_000 + os.Getpid()) // no other process of the machine sleeps as long
	n, verifier := verifying(t, fmt.Sprintf("setsid sleep %[1]s & exec sleep %[1]s", long))
	pulled := make(chan error, 1)
	go func() {
		_, err := n.Images.PullImage(nodetest.Context(t), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: node.Busybox}})
		pulled <- err
	}()
	sleeping := func() (pids []int) {
		commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, path := range commands {
			if line, _ := os.ReadFile(path); string(line) == "sleep\x00"+long+"\x00" {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
				pids = append(pids, pid)
			}
		}
		return pids
	}
	t.Cleanup(func() {
		for _, pid := range sleeping() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	nodetest.Eventually(t, 10*time.Second, "the verifier and its child run", func() error {
		if running := sleeping(); len(running) != 2 {
			return fmt.Errorf("processes %v", running)
		}
		return nil
	})
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-pulled; err == nil {
		t.Error("the pull has succeeded")
	}
	nodetest.Eventually(t, 5*time.Second, "the processes of the verifier are gone", func() error {
		if left := sleeping(); len(left) > 0 {
			return fmt.Errorf("processes %v", left)
		}
		return nil
	})
	writeVerifier(t, verifier, "exit 0")
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	nodetest.Pull(t, n, node.Busybox)
}
