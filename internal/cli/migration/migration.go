// Package migration has the steps of `berth migrate`, which changes a node from containerd or CRI-O to Berth, and back:
// it writes the configuration that internal/migrate has translated, imports the images into berthd, runs the checks of
// doctor, and prints what is left to do.
package migration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/archive"
	"berth/internal/cli/connection"
	"berth/internal/cli/findings"
	"berth/internal/config"
	"berth/internal/config/check"
	"berth/internal/disk"
	"berth/internal/doctor"
	"berth/internal/migrate"
)

// The runtimes that a node can come from.
const (
	Containerd = "containerd"
	CRIO       = "crio"
)

// Migration is what is to be done, and where it is reported.
type Migration struct {
	Runtime       string // Containerd or CRIO
	File          string // its configuration
	Containers    string // CRI-O: the directory of registries.conf, policy.json and storage.conf
	Dir           string // of Berth's configuration
	Root          string // of the other runtime's images; "": as its configuration says
	KubeletConfig string // a kubelet's configuration that gets Berth's socket; "": none
	DryRun        bool   // write nothing, and print what would be written
	Revert        bool   // put back what was written
	NoImages      bool   // import no images
	Address       string // of berthd; "": as the translated configuration says
	System        string // where the node's file system is, for the kubelet's unit files; "": /

	Out     io.Writer
	Colored bool // Out takes the colours of a terminal
	Columns int  // of the terminal that Out is; 0: it is none
}

// Run translates, writes, imports, checks, and says what is to be done next; or it puts back what was written. bad says
// that doctor has found what keeps pods from running here.
func (m *Migration) Run(ctx context.Context) (bad bool, err error) {
	id := m.Runtime
	record, err := migrate.Open(m.Dir, id)
	if err != nil {
		return false, err
	}
	if m.Revert {
		return false, m.revert(record, id)
	}
	kubelet := migrate.ReadKubelet(m.System)
	plan, err := m.translate()
	if err != nil {
		return false, err
	}
	store, images, err := m.images(ctx, plan)
	if err != nil {
		return false, err
	}
	loaded, err := plan.Finish()
	if err != nil {
		return false, fmt.Errorf("the translated configuration is not valid: %w", err)
	}
	kubelet.Notes(plan, loaded.Address, m.KubeletConfig)
	migrate.OpenFiles(plan, m.System)
	environment := migrate.ReadEnvironment(m.System, plan.ID())
	environment.Notes(plan)
	files := plan.Files
	if m.KubeletConfig != "" {
		file, err := migrate.KubeletFile(m.KubeletConfig, loaded.Address)
		if err != nil {
			return false, err
		}
		files = append(files, file)
	}
	if m.DryRun {
		m.printFiles(files)
	} else {
		record.Keep(kubelet.Sockets(plan.Socket, loaded.Address, m.KubeletConfig))
		changes := migrate.Changes(files)
		if err := record.Apply(m.Dir, files); err != nil {
			return false, err
		}
		if err := record.WriteReport(plan); err != nil {
			return false, err
		}
		for _, path := range changes {
			fmt.Fprintf(m.Out, "wrote %s\n", path)
		}
		if len(changes) == 0 {
			fmt.Fprintln(m.Out, "the configuration is as it was")
		}
	}
	m.printNotes(plan, record.ReportPath(), m.DryRun)
	importErr := m.importImages(ctx, store, images, loaded.Config, record)
	bad = m.examine(ctx, loaded.Config)
	if !m.DryRun {
		m.printNext(kubelet, environment, plan, loaded.Config)
	}
	return bad, importErr
}

func (m *Migration) translate() (*migrate.Plan, error) {
	if m.Runtime == CRIO {
		return migrate.FromCRIO(m.File, m.Containers, m.Dir)
	}
	return migrate.FromContainerd(m.File, m.Dir)
}

func (m *Migration) revert(record *migrate.Record, id string) error {
	if record.Empty() {
		fmt.Fprintf(m.Out, "there is nothing of `berth migrate %s` to put back\n", id)
		return nil
	}
	sockets := record.Sockets
	done, err := record.Revert()
	for _, line := range done {
		fmt.Fprintln(m.Out, line)
	}
	if err != nil {
		return err
	}
	fmt.Fprint(m.Out, `Images that were imported stay, until "berth rmi --unused" removes them. Then, after a drain:
  systemctl stop kubelet
  berth rm --all --force   # pods of DaemonSets and static pods, which would run on
  systemctl disable --now berthd.socket berthd berth-keeper
`)
	for _, line := range migrate.ReadKubelet(m.System).StartCommands(id, sockets) {
		fmt.Fprintln(m.Out, "  "+line)
	}
	fmt.Fprintln(m.Out, "  systemctl restart kubelet")
	return nil
}

// imageStore is the other runtime's.
type imageStore interface {
	// WriteArchive writes an image as an archive that berthd imports.
	WriteArchive(ctx context.Context, w io.Writer, img *migrate.Image) error
}

// images are those that are to be imported, and what has them.
func (m *Migration) images(ctx context.Context, plan *migrate.Plan) (imageStore, []*migrate.Image, error) {
	if m.NoImages {
		return nil, nil, nil
	}
	if m.Root != "" {
		plan.Store = m.Root
	}
	if m.Runtime == CRIO {
		store := &migrate.LayerStore{Roots: append([]string{plan.Store}, plan.MoreStores...), Sandbox: plan.Sandbox}
		images, err := store.Images(ctx)
		return store, images, err
	}
	store := &migrate.Store{Root: plan.Store, Sandbox: plan.Sandbox}
	images, err := m.containerdImages(ctx, store, plan)
	if err != nil {
		return nil, nil, err
	}
	plan.Pin(images)
	return store, images, nil
}

// containerdImages are those of a containerd that runs or that does not.
func (m *Migration) containerdImages(ctx context.Context, store *migrate.Store,
	plan *migrate.Plan) ([]*migrate.Image, error) {
	names, others, err := store.Names()
	if errors.Is(err, migrate.ErrRunning) {
		var asked error
		if names, asked = connection.ContainerdImages(ctx, plan.Socket); asked != nil {
			return nil, fmt.Errorf("%w; %w: stop it, or let this command reach it", err, asked)
		}
	} else if err != nil {
		return nil, err
	}
	for namespace, n := range others {
		fmt.Fprintf(m.Out, "%d images in containerd's namespace %s are not the kubelet's, and stay\n", n, namespace)
	}
	return store.Images(ctx, names)
}

func (m *Migration) printFiles(files []migrate.File) {
	for _, f := range files {
		if f.Mode == 0o600 {
			fmt.Fprintf(m.Out, "would write %s, which has secrets\n\n", f.Path)
			continue
		}
		if f.CopyOf != "" {
			fmt.Fprintf(m.Out, "would write %s, a copy of %s\n\n", f.Path, f.CopyOf)
			continue
		}
		fmt.Fprintf(m.Out, "would write %s:\n\n%s\n", f.Path, f.Data)
	}
}

// printNotes prints what somebody has to look at.
func (m *Migration) printNotes(plan *migrate.Plan, report string, dryRun bool) {
	counts := map[migrate.Fate]int{}
	for _, n := range plan.Notes {
		counts[n.Fate]++
	}
	fmt.Fprintf(m.Out, "keys of %s: %d translated, %d needless, %d to look at", plan.Runtime, counts[migrate.Translated],
		counts[migrate.Needless], counts[migrate.Left])
	if !dryRun {
		fmt.Fprintf(m.Out, "; all are in %s", report)
	}
	fmt.Fprintln(m.Out)
	for _, n := range plan.Notes {
		if n.Fate == migrate.Left {
			fmt.Fprintf(m.Out, "  %s\n      %s\n", n.Key, n.Text)
		}
	}
}

// importImages gives images to berthd, or puts archives of them where it looks for them when it starts. Archives of
// earlier runs that do not belong there any more go first.
func (m *Migration) importImages(ctx context.Context, store imageStore, images []*migrate.Image,
	cfg *config.Config, record *migrate.Record) error {
	if m.NoImages {
		return nil
	}
	address := m.Address
	if address == "" {
		address = cfg.Address
	}
	conn, err := connection.Dial(ctx, address)
	if err == nil {
		defer conn.Close()
	} else if len(images) > 0 && !m.DryRun && cfg.Image.PreloadDir == "" {
		return fmt.Errorf("no berthd answers, and there is no image.preload_dir: %w", err)
	}
	if !m.DryRun {
		var archives []string
		for _, img := range images {
			if conn == nil {
				archives = append(archives, archivePath(img, cfg.Image.PreloadDir, m.Runtime))
			}
		}
		if err := record.KeepArchives(archives); err != nil {
			return err
		}
	}
	if len(images) == 0 {
		return nil
	}
	var errs []error
	imported, there, verb := 0, 0, "imported"
	if conn == nil {
		verb = "packed"
	}
	for _, img := range images {
		if img.Missing != "" {
			errs = append(errs, fmt.Errorf("%s has to be pulled again: %s", img, img.Missing))
			continue
		}
		if m.DryRun {
			fmt.Fprintf(m.Out, "would import %s (%d bytes)\n", img, img.Bytes)
			continue
		}
		var has bool
		if conn != nil {
			has, err = m.give(ctx, conn, store, img)
		} else {
			has, err = archiveImage(ctx, store, img, cfg.Image.PreloadDir, m.Runtime, record)
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			errs = append(errs, fmt.Errorf("import %s: %w", img, err))
		case has:
			there++
		default:
			imported++
			fmt.Fprintf(m.Out, "%s %s\n", verb, strings.Join(append([]string{img.Digest.String()}, img.Names...), " "))
		}
	}
	if !m.DryRun {
		fmt.Fprintf(m.Out, "images: %d %s, %d there already, %d not\n", imported, verb, there, len(errs))
		if conn == nil {
			fmt.Fprintf(m.Out, "berthd does not run: it imports the images from %s when it starts\n", cfg.Image.PreloadDir)
		}
	}
	return errors.Join(errs...)
}

// give sends an image to berthd, unless it has the image.
func (m *Migration) give(ctx context.Context, conn *connection.Connection, store imageStore,
	img *migrate.Image) (has bool, err error) {
	for _, name := range img.Names {
		status, err := conn.Images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
		if err != nil {
			return false, connection.Plain(err)
		}
		have := slices.ContainsFunc(status.GetImage().GetRepoDigests(), func(d string) bool {
			return strings.HasSuffix(d, "@"+img.Digest.String())
		})
		if has = have; !has {
			break
		}
		if img.Pinned && !status.GetImage().GetPinned() {
			if _, err := conn.Pulls.Pin(ctx, &berthv1.PinRequest{Image: name, Pinned: true}); err != nil {
				return true, connection.Plain(err)
			}
		}
	}
	if has {
		return true, nil
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(store.WriteArchive(ctx, w, img)) }()
	_, err = archive.Load(ctx, conn.Pulls, r, img.Pinned)
	r.CloseWithError(context.Canceled)
	return false, err
}

// archivePath is where the archive of an image is. Its name tells the image's digest and its names, so that a whole
// archive need not be written again.
func archivePath(img *migrate.Image, dir, runtime string) string {
	names := digest.FromString(strings.Join(slices.Sorted(slices.Values(img.Names)), "\n")).Encoded()[:12]
	return filepath.Join(dir, runtime+"-"+img.Digest.Encoded()+"-"+names+config.PreloadOnce)
}

// archiveImage writes an image for the next start of berthd, unless that is done. An archive gets its name when all of
// it is on the disk: one that a failure of power has cut short is not taken for a whole one.
func archiveImage(ctx context.Context, store imageStore, img *migrate.Image, dir, runtime string,
	record *migrate.Record) (has bool, err error) {
	path := archivePath(img, dir, runtime)
	if _, err := os.Stat(path); err == nil {
		return true, nil
	}
	if err := record.AddArchive(path); err != nil {
		return false, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	partial := path + migrate.Partial
	file, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return false, err
	}
	if err = store.WriteArchive(ctx, file, img); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(partial, path)
	}
	if err != nil {
		return false, errors.Join(err, os.Remove(partial))
	}
	return false, disk.SyncDir(dir)
}

// examine says what of the configuration and of the machine cannot work.
func (m *Migration) examine(ctx context.Context, cfg *config.Config) (bad bool) {
	if !m.DryRun || cfg.HostsDir != filepath.Join(m.Dir, "certs.d") {
		if err := check.Node(cfg); err != nil {
			for line := range strings.Lines(err.Error()) {
				fmt.Fprintf(m.Out, "check: %s\n", strings.TrimSpace(line))
			}
		}
	}
	found := doctor.Examine(ctx, doctor.Config{
		Socket: cfg.Address, Root: cfg.Root, State: cfg.State, CNI: doctor.CNI{
			CNIConfDir: cfg.Network.CNIConfDir, CNIBinDirs: cfg.Network.CNIBinDirs, CNINetwork: cfg.Network.CNINetwork,
			RequireCNI: cfg.Network.RequireCNI, Bridge: cfg.Network.Bridge,
		},
		ContainerdVersion: connection.ContainerdVersion,
	})
	var worth []doctor.Finding
	for _, f := range found {
		// No daemon runs yet, and none has to.
		if f.Level != doctor.Good && f.Subject != "socket" && f.Subject != "container metrics" {
			worth = append(worth, f)
			bad = bad || f.Level == doctor.Bad
		}
	}
	if err := findings.Print(m.Out, m.Columns, m.Colored, worth); err != nil {
		return true
	}
	return bad
}

func (m *Migration) printNext(kubelet *migrate.Kubelet, environment *migrate.Environment, plan *migrate.Plan,
	cfg *config.Config) {
	fmt.Fprintln(m.Out, "\nNext, on a node that is drained (docs/migrating.md):")
	for _, line := range slices.Concat([]string{
		"systemctl stop kubelet", migrate.StopPodsCommand(plan.Socket) + "   # of DaemonSets, and static ones",
		kubelet.StopCommand(plan.ID()),
	}, environment.Commands(), []string{"systemctl enable berth-keeper berthd && systemctl restart berthd"},
		kubelet.Commands(plan.ID(), cfg.Address, m.KubeletConfig)) {
		fmt.Fprintln(m.Out, "  "+line)
	}
}
