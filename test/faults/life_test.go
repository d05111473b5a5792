package faults

import (
	"bytes"
	"context"
	"crypto/md5"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/faults/tally"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// life is one pod of a churn.
type life struct {
	*churn
	id     string
	config *cri.PodSandboxConfig
	pids   *cri.NamespaceOption // of the pod and its containers
}

// program is a container of a churn, or an exec in one, that has a file of its own on the host, to which it writes
// a line when it runs.
type program struct {
	l    *life
	name string // of the file
	id   string // of the container
	log  string
	code int32 // it ends with
	// told is how its start was answered, and what a kill has cut off before.
	told string
}

// pod runs a pod. What a kill has cut off is not known to this client, and is removed with all pods in the end.
func (c *churn) pod() (*life, error) {
	l := &life{churn: c, config: nodetest.PodConfig(c.n), pids: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}}
	if c.serial.Add(1)%3 == 0 { // others of the pod see its stages
		l.pids.Pid = cri.NamespaceMode_POD
	}
	l.config.Linux.SecurityContext.NamespaceOptions = l.pids
	err := c.once(callRunPod, func(ctx context.Context) error {
		made, err := c.n.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: l.config})
		l.id = made.GetPodSandboxId()
		return err
	})
	if err != nil {
		return nil, err
	}
	return l, again("status of a pod that was acknowledged", func(ctx context.Context) error {
		_, err := c.n.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: l.id})
		return err
	})
}

// remove ends the pod, and sees that it is gone.
func (l *life) remove(stopFirst bool) error {
	runtime := l.n.Runtime
	if stopFirst {
		if err := l.again(callStop, func(ctx context.Context) error {
			_, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: l.id})
			return err
		}); err != nil {
			return err
		}
	}
	if err := l.again(callRemove, func(ctx context.Context) error {
		_, err := runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: l.id})
		return err
	}); err != nil {
		return err
	}
	err := again("status of a pod that was removed", func(ctx context.Context) error {
		_, err := runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: l.id})
		return err
	})
	if status.Code(err) != codes.NotFound {
		return fmt.Errorf("pod %s is removed, and its status is %v", l.id, err)
	}
	return nil
}

// file is a new name for a program's file, and the command by which the program writes there.
func (c *churn) file() (name, write string) {
	name = fmt.Sprintf("p%d", c.serial.Add(1))
	return name, "echo ran >>/count/" + name + "; "
}

// ran is how often a program has run.
func (c *churn) ran(name string) int64 {
	data, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		return 0
	}
	return int64(bytes.Count(data, []byte("\n")))
}

// create makes a container. An error of a kill says nothing of what there is.
func (l *life) create(image, script string, code int32, edits ...nodetest.ContainerEdit) (*program, error) {
	p := &program{l: l, code: code}
	var write string
	p.name, write = l.file()
	p.log = filepath.Join(l.config.LogDirectory, p.name+".log")
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: p.name}, Image: &cri.ImageSpec{Image: image},
		Command: []string{"sh", "-c", write + script}, LogPath: p.name + ".log",
		Linux:  &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: l.pids}},
		Mounts: []*cri.Mount{{HostPath: l.dir, ContainerPath: "/count"}},
	}
	for _, edit := range edits {
		edit(config)
	}
	return p, l.once(callCreate, func(ctx context.Context) error {
		made, err := l.n.Runtime.CreateContainer(ctx,
			&cri.CreateContainerRequest{PodSandboxId: l.id, SandboxConfig: l.config, Config: config})
		p.id = made.GetContainerId()
		return err
	})
}

// start starts it. Where a kill has cut the call off the container is either as it was, and is started again,
// or has been started.
func (p *program) start() error {
	p.l.counts.add(tally.Programs, 1)
	for {
		err := p.l.once(callStart, func(ctx context.Context) error {
			_, err := p.l.n.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: p.id})
			return err
		})
		if err == nil {
			p.told += "started"
			return nil
		}
		if !away(err) {
			return fmt.Errorf("start: %w", err)
		}
		s, statusErr := p.status()
		if statusErr != nil {
			return statusErr
		}
		p.told += fmt.Sprintf("%v, then it is %v; ", err, s.State)
		if s.State != cri.ContainerState_CONTAINER_CREATED {
			return nil
		}
		if n := p.l.ran(p.name); n > 0 {
			return p.l.wrong(tally.ProgramsWrong, 1,
				"container %s is told as created, and its program has run %d times (start: %v)", p.id, n, err)
		}
	}
}

func (p *program) status() (*cri.ContainerStatus, error) {
	var s *cri.ContainerStatus
	return s, again("status of a container that was acknowledged", func(ctx context.Context) error {
		r, err := p.l.n.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: p.id})
		s = r.GetStatus()
		return err
	})
}

// end waits until it has ended, and looks whether it has run once, ended with its code, and whether its log
// has the lines 1 to lines.
func (p *program) end(lines int) error {
	var s *cri.ContainerStatus
	for deadline := time.Now().Add(node.Patience(2 * time.Minute)); ; time.Sleep(20 * time.Millisecond) {
		var err error
		if s, err = p.status(); err != nil {
			return err
		}
		if s.State == cri.ContainerState_CONTAINER_EXITED {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("container %s is %v, and should have ended two minutes ago", p.id, s.State)
		}
	}
	c := p.l.churn
	c.counts.add(tally.Exits, 1)
	if n := c.ran(p.name); n != 1 {
		return c.wrong(tally.ProgramsWrong, 1,
			"the program of container %s (start: %s; ended with %d, %s: %s) has run %d times",
			p.id, p.told, s.ExitCode, s.Reason, s.Message, n)
	}
	switch {
	case s.ExitCode == p.code:
	case c.orphans.Load() && node.OrphanEnded(s, p.code):
		c.counts.add(tally.ExitsUntold, 1)
	default:
		return c.wrong(tally.ExitsWrong, 1, "container %s ended with %d (%s: %s), want %d", p.id, s.ExitCode,
			s.Reason, s.Message, p.code)
	}
	return p.logged(lines)
}

// logged looks whether the log has the lines 1 to lines, once each.
func (p *program) logged(lines int) error {
	c := p.l.churn
	c.counts.add(tally.Lines, int64(lines))
	var wrong int64
	var first string
	wait := 30 * time.Second
	if c.lossy.Load() {
		wait = time.Second
	}
	for deadline := time.Now().Add(node.Patience(wait)); ; time.Sleep(50 * time.Millisecond) {
		data, err := os.ReadFile(p.log)
		if err != nil {
			return err
		}
		if wrong, first = missing(string(data), lines); wrong == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			s, _ := p.status()
			return c.wrong(tally.LinesWrong, wrong,
				"the log of container %s (start: %s; now %v, %d, has run %d times): %d of %d lines are lost, "+
					"doubled or in pieces: %s", p.id, p.told, s.GetState(), s.GetExitCode(), c.ran(p.name), wrong, lines, first)
		}
	}
}

// missing counts the lines of a log that are not the next of the numbers 1 to last, and says where that begins.
func missing(log string, last int) (wrong int64, first string) {
	next := 1
	begun := ""
	for line := range strings.Lines(log) {
		_, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " stdout ")
		if part, ok := strings.CutPrefix(text, "P "); ok { // the rest comes in the next record
			begun += part
			continue
		}
		text = begun + strings.TrimPrefix(text, "F ")
		begun = ""
		number, err := strconv.Atoi(strings.TrimPrefix(text, "line "))
		if err == nil && number == next {
			next++
			continue
		}
		if wrong == 0 {
			first = fmt.Sprintf("after %d comes %q", next-1, line)
		}
		wrong++
		if err == nil && number > next {
			wrong += int64(number - next - 1)
			next = number + 1
		}
	}
	if next <= last {
		if wrong == 0 {
			first = fmt.Sprintf("it ends with %d", next-1)
		}
		wrong += int64(last - next + 1)
	}
	return wrong, first
}

// briefScript writes its lines in pieces.
const briefScript = `n=0
while [ $n -lt 40 ]; do n=$((n+1)); printf li; printf "ne $n
"; [ $n != 20 ] || sleep 0.1; done
`

// brief is a pod whose container ends by itself.
func (c *churn) brief(worker int) error {
	l, err := c.pod()
	if err != nil {
		return err
	}
	code := int32(worker + 3)
	p, err := l.create(node.Busybox, briefScript+fmt.Sprint("exit ", code), code)
	if err == nil {
		if err = p.start(); err == nil {
			err = p.end(40)
		}
	}
	return after(err, l.remove(worker%2 == 0))
}

// after is the first error that says something.
func after(first, second error) error {
	if first != nil && (!away(first) || second == nil) {
		return first
	}
	return second
}

const servedScript = `trap 'trap "" TERM; echo line 3; exit %d' TERM; echo line 1; echo line 2; sleep 3600 & wait`

// served is a pod whose container is used, and stopped.
func (c *churn) served(worker int) error {
	l, err := c.pod()
	if err != nil {
		return err
	}
	err = l.serve(int32(worker + 3))
	return after(err, l.remove(false)) // a stop would give a container that has lost its client half a minute
}

func (l *life) serve(code int32) error {
	p, err := l.create(node.Busybox, fmt.Sprintf(servedScript, code), code)
	if err != nil {
		return err
	}
	if err := p.start(); err != nil {
		return err
	}
	// The program has its trap when its lines are there; a signal before that would end it.
	if err := p.logged(2); err != nil {
		return err
	}
	l.counts.add(tally.Lines, -2) // they are counted in the end
	for _, try := range []func() error{p.execSync, p.execSync, p.execStream, p.execSync, p.attach} {
		if err := try(); err != nil {
			return err
		}
	}
	if err := l.again(callStop, func(ctx context.Context) error {
		_, err := l.n.Runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: p.id, Timeout: 60})
		return err
	}); err != nil {
		return err
	}
	if err := p.end(3); err != nil {
		return err
	}
	if err := l.again(callRemove, func(ctx context.Context) error {
		_, err := l.n.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: p.id})
		return err
	}); err != nil {
		return err
	}
	err = again("status of a container that was removed", func(ctx context.Context) error {
		_, err := l.n.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: p.id})
		return err
	})
	if status.Code(err) != codes.NotFound {
		return fmt.Errorf("container %s is removed, and its status is %v", p.id, err)
	}
	return nil
}

// numbers is how many lines execs and attaches write, whose bytes are all known, and numbered them.
const numbers = 4000

var numbered = func() string {
	var b strings.Builder
	for i := range numbers {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}()

// execCode is what an exec ends with: a code that a connection which breaks does not give.
const execCode = 7

func (c *churn) exec() (name string, command []string) {
	name, write := c.file()
	c.counts.add(tally.Programs, 1)
	return name, []string{"sh", "-c", fmt.Sprintf("%sseq 1 %d; exit %d", write, numbers, execCode)}
}

// ranOnce looks whether an exec has run once, or at most once where its call failed.
func (p *program) ranOnce(name string, failed error) error {
	n := p.l.ran(name)
	if n == 1 || failed != nil && n == 0 {
		return nil
	}
	return p.l.wrong(tally.ProgramsWrong, 1, "an exec in %s (error: %v) has run %d times", p.id, failed, n)
}

// whole looks whether an exec or attach has got all bytes.
func (p *program) whole(what, got string) error {
	p.l.counts.add(tally.Bytes, int64(len(numbered)))
	if got == numbered {
		return nil
	}
	lost := max(len(numbered)-len(got), 1)
	return p.l.wrong(tally.BytesWrong, int64(lost), "%s of %s succeeded, and has %d of %d bytes", what,
		p.id, len(got), len(numbered))
}

func (p *program) execSync() error {
	name, command := p.l.exec()
	var got *cri.ExecSyncResponse
	err := p.l.once(callExec, func(ctx context.Context) (err error) {
		got, err = p.l.n.Runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: p.id, Cmd: command, Timeout: 100})
		return err
	})
	if wrong := p.ranOnce(name, err); wrong != nil {
		return wrong
	}
	if err != nil {
		if away(err) || status.Code(err) == codes.Aborted { // nobody knows how far it came
			return nil
		}
		return fmt.Errorf("exec: %w", err)
	}
	if got.ExitCode != execCode {
		return p.l.wrong(tally.ExitsWrong, 1, "an exec in %s ended with %d, want %d: %s", p.id, got.ExitCode,
			execCode, got.Stderr)
	}
	return p.whole("exec", string(got.Stdout))
}

func (p *program) execStream() error {
	name, command := p.l.exec()
	var got nodetest.Buffer
	var code int
	err := p.l.once(callExec, func(ctx context.Context) error {
		made, err := p.l.n.Runtime.Exec(ctx, &cri.ExecRequest{ContainerId: p.id, Cmd: command, Stdout: true})
		if err != nil {
			return err
		}
		// The URL is used once, so an error of the stream is a call that failed.
		code, err = nodetest.Stream(ctx, nodetest.SPDY, made.Url, remotecommand.StreamOptions{Stdout: &got})
		if err == nil && code != execCode {
			err = fmt.Errorf("code %d", code) // the client of Kubernetes takes a connection that breaks for an end with 0
		}
		if err != nil {
			err = status.Errorf(codes.Unavailable, "stream: %v", err)
		}
		return err
	})
	if wrong := p.ranOnce(name, err); wrong != nil {
		return wrong
	}
	if err != nil {
		if away(err) || status.Code(err) == codes.Aborted {
			return nil
		}
		return fmt.Errorf("exec by a stream: %w", err)
	}
	return p.whole("exec by a stream", got.String())
}

// attach runs a container that waits for its client. A connection that a kill cuts off has the first bytes,
// and no others.
func (p *program) attach() error {
	q, err := p.l.create(node.Busybox, fmt.Sprintf("read x; seq 1 %d; exit %d", numbers, execCode), execCode,
		func(c *cri.ContainerConfig) { c.Stdin, c.StdinOnce = true, true })
	if err != nil {
		return nil // how creating fails is looked at elsewhere
	}
	if err := q.start(); err != nil {
		return err
	}
	var got nodetest.Buffer
	err = p.l.once(callExec, func(ctx context.Context) error {
		made, err := p.l.n.Runtime.Attach(ctx, &cri.AttachRequest{ContainerId: q.id, Stdin: true, Stdout: true})
		if err != nil {
			return err
		}
		_, err = nodetest.Stream(ctx, nodetest.WebSocket, made.Url,
			remotecommand.StreamOptions{Stdin: strings.NewReader("go\n"), Stdout: &got})
		if err != nil {
			err = status.Errorf(codes.Unavailable, "stream: %v", err)
		}
		return err
	})
	switch {
	case err == nil:
		return q.whole("attach", got.String())
	case !away(err):
		return fmt.Errorf("attach: %w", err)
	case !strings.HasPrefix(numbered, got.String()):
		return p.l.wrong(tally.BytesWrong, int64(len(got.String())),
			"an attach to %s that was cut off has other bytes than were written", q.id)
	}
	return nil
}

// churnImage is an image that one worker pulls and removes.
type churnImage struct {
	ref string
	sum string // of all files in /data
}

func pushImages(t *testing.T, n *node.Node, images int) []churnImage {
	t.Helper()
	busybox, err := registrytest.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	var all []churnImage
	for i := range images {
		content := md5.New()
		options := []registrytest.ImageOption{registrytest.Layer(busybox...), registrytest.Env("PATH=/bin:/usr/bin")}
		for layer := range 2 {
			entries := registrytest.Random(int64(10*i+layer), fmt.Sprintf("data/%d", layer), 100, 512<<10)
			for _, e := range entries {
				content.Write(e.Body)
			}
			options = append(options,
				registrytest.Layer(append([]registrytest.Entry{registrytest.Dir("data", 0o755)}, entries...)...))
		}
		image, err := registrytest.Image(options...)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("churn%d:1", i)
		if err := n.Registry.Push(name, image); err != nil {
			t.Fatal(err)
		}
		all = append(all, churnImage{node.RegistryHost + "/" + name, fmt.Sprintf("%x", content.Sum(nil))})
	}
	return all
}

// pulls pulls an image anew, and looks after the next kill whether it is there, whole.
func (c *churn) pulls(worker int) error {
	image := c.images[worker/3]
	spec := &cri.ImageSpec{Image: image.ref}
	if err := c.again(callRemove, func(ctx context.Context) error {
		_, err := c.n.Images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: spec})
		return err
	}); err != nil {
		return err
	}
	if err := c.once(callPull, func(ctx context.Context) error {
		_, err := c.n.Images.PullImage(ctx, &cri.PullImageRequest{Image: spec})
		return err
	}); err != nil {
		return err
	}
	c.counts.add(tally.Pulls, 1)
	kills := c.kills.Load()
	for began := time.Now(); c.kills.Load() == kills && c.ctx.Err() == nil && time.Since(began) < 2*time.Second; {
		time.Sleep(10 * time.Millisecond)
	}
	if err := again("status of an image", func(ctx context.Context) error {
		r, err := c.n.Images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec})
		if err == nil && r.Image == nil {
			err = c.wrong(tally.PullsWrong, 1, "the pull of %s was acknowledged, and the image is not there", image.ref)
		}
		return err
	}); err != nil {
		return err
	}
	l, err := c.pod()
	if err != nil {
		return err
	}
	p, err := l.create(image.ref, "cat /data/*/* | md5sum | grep -q ^"+image.sum, 0)
	if status.Code(err) == codes.NotFound {
		err = c.wrong(tally.PullsWrong, 1, "the pull of %s was acknowledged, and no container is made of it: %v",
			image.ref, err)
	}
	if err == nil {
		if err = p.start(); err == nil {
			err = p.end(0)
		}
		s, statusErr := p.status()
		if statusErr == nil && s.State == cri.ContainerState_CONTAINER_EXITED && s.ExitCode == 1 && s.Reason == "Error" {
			err = c.wrong(tally.PullsWrong, 1,
				"the pull of %s was acknowledged, and its files are not those of the image", image.ref)
		}
	}
	return after(err, l.remove(false))
}
